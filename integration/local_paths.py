"""Resolve the directories that commands read on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from twopc.errors import ConfigurationError

#: A single letter is a drive, not a scheme. A ``Path`` has turned two slashes into one.
_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(/.*)")


def local_path(location: str | Path) -> Path:
    """Return the directory of a path or a ``file:`` URL. Like Hadoop, this function does not decode percent signs.

    Raises:
        ConfigurationError: the location is a URL of another file system.
    """
    match = _URL.fullmatch(str(location))
    if match is None:
        return Path(location)
    scheme, path = match[1].lower(), match[2]
    if scheme != "file":
        raise ConfigurationError(
            f"{location} is not on this machine. This command reads only local directories and file: URLs. Mount the "
            "directory, or copy it (for example with `hdfs dfs -get`) and pass the path of the copy. For a history, a copy "
            "of twopc/history is enough. `twopc status` also takes a sink's name instead of a checkpoint"
        )
    return Path("/" + path[2:].partition("/")[2] if path.startswith("//") else path)


def is_elsewhere(location: str | Path) -> bool:
    """Whether the location is a URL of a file system other than the local one."""
    match = _URL.fullmatch(str(location))
    return match is not None and match[1].lower() != "file"
