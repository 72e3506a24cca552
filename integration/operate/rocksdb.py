"""Find the files that a snapshot of RocksDB state refers to.

Spark stores a snapshot as ``<version>.zip``. RocksDB's own files are not in this file. They are beside it, in the directories
``SSTs`` and ``logs``, because several snapshots share them. The entry ``metadata`` of the zip file lists their names.
"""

from __future__ import annotations

import zipfile
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
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


def files_of(snapshot: Path, name: str) -> set[str]:
    """List the files without which the snapshot cannot be read, by their names in the checkpoint.

    Args:
        snapshot: the snapshot's zip file, or a copy of it.
        name: the zip file's name in the checkpoint.

    Raises:
        ConfigurationError: the zip file is damaged, or has a format that this toolkit does not know.
    """
    try:
        found = _metadata(snapshot)
    # What `zipfile` and `msgspec` raise for a damaged or unknown file.
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError) as error:
        raise ConfigurationError(
            f"{name} does not say which RocksDB files it needs ({error}), so the copy might lack some of them. No savepoint was "
            "taken. Either this file is damaged, or a version of Spark that this toolkit does not know has written it. If "
            "the query starts with this checkpoint, stop the query, and copy the checkpoint's whole directory instead"
        ) from error
    directory = name.rpartition("/")[0]
    tables = {f"{directory}/SSTs/{one.name}" for one in found.tables}
    return tables | {f"{directory}/logs/{one.name}" for one in found.logs}


def _metadata(snapshot: Path) -> _Metadata:
    with zipfile.ZipFile(snapshot) as stream:
        first, _, facts = stream.read(_METADATA).partition(b"\n")
    if first != _FORMAT:
        raise ValueError(f"its {_METADATA} has the format {first[:20]!r} instead of {_FORMAT!r}")
    return msgspec.json.decode(facts, type=_Metadata)
