"""Read the text of a plan, and tell whether Spark shows all of it. The user's settings may shorten a plan's text."""

from __future__ import annotations

import re
from typing import Final

#: A node of a plan: its place in the tree (the branch is longer, the deeper the node is), its stage of generated code, its name,
#: and the rest of its line. Spark marks some nodes, such as stateful ones with a Python function, with an exclamation mark.
NODE: Final = re.compile(r"^(?P<branch>[\s:|+-]*)(?:\*\s?\(\d+\)\s*)?!?(?P<name>\w+)(?P<rest>.*)$")
#: Spark writes this in place of columns or expressions, if a node has more of them than ``spark.sql.debug.maxToStringFields``.
OMITTED: Final = " more fields"
#: The last word of a text that is longer than ``spark.sql.maxPlanStringLength``. The text ends with "... 7 more
#: characters". If the setting is 30 or less, the whole text is "Truncated plan of 7 characters" (``PlanStringConcat``).
_END: Final = "characters"


def is_cut_short(text: str) -> bool:
    """Whether Spark has omitted the end of a plan's text, or the whole plan. Then the plan may contain any node."""
    return text.rstrip().endswith(_END)
