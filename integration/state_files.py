"""Parse the names of the files in which Spark keeps the versions of a query's state."""

from __future__ import annotations

import re
from typing import Final

#: The name of a version, for both providers. Spark 4 may add a unique id.
_VERSION: Final = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(delta|snapshot|zip|changelog)")


def version_of(name: str) -> tuple[int, str] | None:
    """Return the version of a state store that a file holds, and the file's kind; None if the file holds none.

    Args:
        name: the file's name, without its directory.
    """
    found = _VERSION.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])
