"""Parse the names of the files that contain the versions of a query's state."""

from __future__ import annotations

import re
from typing import Final

#: The name of a version's file, for both state store providers. Spark 4 may add a unique id to the name.
_VERSION: Final = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(delta|snapshot|zip|changelog)")


def version_of(name: str) -> tuple[int, str] | None:
    """Return the state store version that a file contains, and the file's kind.

    Return None if the file contains no version.

    Args:
        name: the file's name, without its directory.
    """
    found = _VERSION.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])
