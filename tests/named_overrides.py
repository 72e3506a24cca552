"""Read the overrides in an error's message, as its user copies them into the code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from twopc import override

if TYPE_CHECKING:
    from twopc.override import Override

_NAMED: Final = re.compile(r"override=(\[.*?\)\]|\w+\(.*?\))(?=[.:;,]? |$)")


def named_overrides(text: str) -> list[Override]:
    """Return the first ``override=`` argument in the text, as a list. The list is empty if the text contains none."""
    found = _NAMED.search(text)
    given = eval(found[1], vars(override)) if found else []  # noqa: S307 - evaluates the text as the user would copy it
    return given if isinstance(given, list) else [given]
