"""Compare a batch's source offsets with the source offsets in a decision (rule 10)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The digest in the offset of a source whose offset is only a counter.
_DIGEST: Final = re.compile(r'\{"digest":"[0-9a-f]*",(?="logOffset":\d+\}$)')


def is_same(decided: Sequence[str], found: Sequence[str]) -> bool:
    """Return whether the found offsets equal an earlier decision's offsets.

    An earlier release added no digest to some sources. If the decision's offset has no digest, the source is compared without
    its digest, because the first start after an upgrade must still recognize the last batch.
    """
    return len(decided) == len(found) and all(map(_is_same, decided, found))


def _is_same(decided: str, found: str) -> bool:
    return decided in {found, _DIGEST.sub("{", found)}
