"""Find out whether a plan uses data that Spark keeps outside RDDs: broadcast tables, and the results of subqueries.

Spark computes such data in separate jobs, once for a plan. Its reports do not show which jobs these were.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT: Final = re.compile("Broadcast|Subquery")


def keeps_data(plans: Iterable[str]) -> bool:
    """Whether one of these physical plans may use such data.

    Args:
        plans: the plans as text. A plan with cached rows includes the plan of these rows.
    """
    return any(map(_KEPT.search, plans))
