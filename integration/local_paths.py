"""Find the local directories that the commands read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from twopc.errors import ConfigurationError

#: A single letter before the colon is a drive, not a scheme. One slash after the colon is enough, because a ``Path``
#: turns two slashes into one.
_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(/.*)")


def local_path(location: str | Path) -> Path:
    """Convert a path or a ``file:`` URL to a directory's path. Like Hadoop, do not decode percent-encoding.

    Raises:
        ConfigurationError: the location is a URL for another file system.
    """
    match = _URL.fullmatch(str(location))
    if match is None:
        return Path(location)
    scheme, path = match[1].lower(), match[2]
    if scheme != "file":
        raise ConfigurationError(
            f"{location} is not on this machine, but this command reads only local directories and file: URLs. Mount "
            "the location's file system, or copy the directory (for example, with `hdfs dfs -get`) and pass the copy's "
            "path. To read a history, you need to copy only twopc/history. `twopc status` also accepts a sink name "
            "instead of a checkpoint"
        )
    return Path("/" + path[2:].partition("/")[2] if path.startswith("//") else path)


def is_elsewhere(location: str | Path) -> bool:
    """Return whether the location is a URL for a file system other than the local file system."""
    match = _URL.fullmatch(str(location))
    return match is not None and match[1].lower() != "file"
