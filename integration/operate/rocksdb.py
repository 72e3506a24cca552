"""Find the files that a snapshot of RocksDB state refers to, and that a copy of a checkpoint lacks.

Spark stores a snapshot as ``<version>.zip``. RocksDB's own files are not in the zip file. Several snapshots share them, so
they are in the directories ``SSTs`` and ``logs`` next to the zip file. The zip file's entry ``metadata`` lists their names.
"""

from __future__ import annotations

import zipfile
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.integration.state_files import newest_snapshots, state_version

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

_METADATA: Final = "metadata"
#: The first line of the metadata, in every version of Spark so far.
_FORMAT: Final = b"v1"


class _TableFile(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="dfsSstFileName")


class _LogFile(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="dfsLogFileName")


class _Metadata(msgspec.Struct, frozen=True):
    """The part of the metadata that names files. Spark leaves out an empty list of log files."""

    tables: tuple[_TableFile, ...] = msgspec.field(name="sstFiles")
    logs: tuple[_LogFile, ...] = msgspec.field(name="logFiles", default=())


class UnknownFilesError(Exception):
    """A snapshot does not say which files it needs. The message is the beginning of a sentence."""


def missing_files(tree: Path, names: AbstractSet[str]) -> list[str]:
    """List RocksDB files that a copy of a checkpoint lacks, by their names in the checkpoint.

    A restart reads only the newest snapshot in each directory. If several of these snapshots lack files, list only the files
    that the first of these snapshots lacks.

    Args:
        tree: the copy.
        names: the names of all files in the copy.

    Raises:
        UnknownFilesError: the zip file of a snapshot is damaged, or has a format that this toolkit does not know.
    """
    newest = newest_snapshots(names)
    for name in sorted(names):
        is_read = state_version(name) == (newest[name.rpartition("/")[0]], "zip") and name.endswith(".zip")
        if is_read and (missing := sorted(_files_of(tree / name, name) - names)):
            return missing
    return []


def _files_of(snapshot: Path, name: str) -> set[str]:
    """List the files without which the snapshot cannot be read."""
    try:
        found = _metadata(snapshot)
    # What `zipfile` and `msgspec` raise for a damaged or unknown file.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, RuntimeError) as error:
        raise UnknownFilesError(f"{name} does not say which RocksDB files it needs ({error})") from error
    directory = name.rpartition("/")[0]
    tables = {f"{directory}/SSTs/{one.name}" for one in found.tables}
    return tables | {f"{directory}/logs/{one.name}" for one in found.logs}


def _metadata(snapshot: Path) -> _Metadata:
    with zipfile.ZipFile(snapshot) as stream:
        first, _, facts = stream.read(_METADATA).partition(b"\n")
    if first != _FORMAT:
        raise ValueError(f"its {_METADATA} has the format {first[:20]!r} instead of {_FORMAT!r}")
    return msgspec.json.decode(facts, type=_Metadata)
