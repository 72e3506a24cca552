"""Parse the names of the files that contain the versions of a query's state."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The name of a version's file, for both state store providers. Spark 4 may add a unique id to the name.
_VERSION: Final = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(delta|snapshot|zip|changelog)")
_SNAPSHOTS: Final = frozenset({"snapshot", "zip"})


def version_of(name: str) -> tuple[int, str] | None:
    """Return the state store version that a file contains, and the file's kind.

    Return None if the file contains no version.

    Args:
        name: the file's name, without its directory.
    """
    found = _VERSION.fullmatch(name)
    return None if found is None else (int(found[1]), found[2])


def state_version(name: str) -> tuple[int, str] | None:
    """Parse the version and kind from the path of a state store file in the checkpoint, or from the path of its checksum."""
    return version_of(name.rpartition("/")[2].removesuffix(".crc")) if name.startswith("state/") else None


def newest_snapshots(names: Iterable[str]) -> Mapping[str, int]:
    """Return the version of the newest snapshot in each directory; 0 for a directory without a snapshot.

    Args:
        names: paths in the checkpoint.
    """
    found: dict[str, int] = defaultdict(int)
    for name in names:
        version = state_version(name)
        if version is not None and version[1] in _SNAPSHOTS:
            directory = name.rpartition("/")[0]
            found[directory] = max(found[directory], version[0])
    return found
