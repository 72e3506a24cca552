"""Directories that the commands read: on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from twopc.errors import ConfigurationError

#: One letter is a drive. A ``Path`` has made one slash of two.
_URL: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(/.*)")


def local_path(location: str | Path) -> Path:
    """The directory of a path or a ``file:`` URL, as Hadoop reads one: nothing in it is percent-encoded.

    Raises:
        ConfigurationError: it is a URL of another file system.
    """
    match = _URL.fullmatch(str(location))
    if match is None:
        return Path(location)
    scheme, path = match[1].lower(), match[2]
    if scheme != "file":
        raise ConfigurationError(
            f"{location} is not on this machine: only local directories and file: URLs are read here. Mount it, or copy it "
            "(as with `hdfs dfs -get`) and name the copy; for a history, a copy of twopc/history is enough. With a sink's name "
            "in place of a checkpoint, `twopc status` needs none"
        )
    return Path("/" + path[2:].partition("/")[2] if path.startswith("//") else path)


def is_elsewhere(location: str | Path) -> bool:
    """Whether it is a URL of another file system than the local one."""
    match = _URL.fullmatch(str(location))
    return match is not None and match[1].lower() != "file"
