"""List the files of a checkpoint for a copy. If the list would lack some files, raise an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    import re


def files_in(checkpoint: Path, left_out: re.Pattern[str]) -> list[str]:
    """List every file that is not left out, and whose path has no name that begins with a dot.

    A dot marks Hadoop's checksums and unfinished files. A directory or file that vanishes meanwhile is missing from the list.

    Args:
        checkpoint: the checkpoint.
        left_out: matches each name that the copy does not need, followed by a slash.

    Raises:
        ConfigurationError: a directory cannot be read, or is a symbolic link. Python does not descend into such a link, because
            the link may lead back to its own parent.
    """
    found: list[Path] = []
    for place, below, files in os.walk(checkpoint, onerror=_unless_gone):
        paths = (Path(place, name) for name in [*below, *files])
        wanted = [path for path in paths if _is_wanted(path, checkpoint, left_out)]
        below[:] = [path.name for path in wanted if path.name in below]  # `os.walk` descends into these
        found += filter(_is_file, wanted)
    return sorted(path.relative_to(checkpoint).as_posix() for path in found)


def _is_wanted(path: Path, checkpoint: Path, left_out: re.Pattern[str]) -> bool:
    return not path.name.startswith(".") and not left_out.match(f"{path.relative_to(checkpoint).as_posix()}/")


def _is_file(path: Path) -> bool:
    try:
        is_file = path.is_file()
    except OSError as error:
        raise _unlisted(error) from error
    if not is_file and path.is_symlink():
        raise _linked(path)
    return is_file


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise _unlisted(error) from error


def _unlisted(error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint cannot be read: {error}. No savepoint was taken, because it would lack the files there. Run the command "
        "as a user who may read the whole checkpoint"
    )


def _linked(path: Path) -> ConfigurationError:
    leads = "leads to a directory" if path.is_dir() else "does not lead to a file"
    return ConfigurationError(
        f"{path} is a symbolic link that {leads}. No savepoint was taken, because it would lack the files behind the link. Stop "
        "the query, replace the link with the directory that it should lead to, or mount that directory there, and try again"
    )
