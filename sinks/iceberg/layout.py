"""Where a sink's files are, under the table's data: ``twopc-<sink>/<id>/<driver epoch>/<batch>/<transaction>-<number>.parquet``.

The id is in the control record. The ``write.data.path`` of two tables may be one directory, and their sinks may have one name;
without the id, each would take the other's files for orphans. The driver epoch and the batch are directories, so that a sweep
lists what may hold orphans, and not all that was ever written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_FILE: Final = re.compile(r"(.+-[0-9]+-[0-9a-f]{32})(?:-[0-9]{5}\.parquet|\.entries)")


@dataclass(frozen=True)
class Layout:
    """The files of one sink.

    Attributes:
        root: the directory of all of them.
    """

    root: str

    def directory(self, epoch: int, batch: int) -> str:
        """The directory of a batch."""
        return f"{self.root}/{epoch}/{batch}"


def layout_of(metadata: TableMetadata, sink: str, sink_id: str) -> Layout:
    """The place of a sink's files in a table; ``write.data.path`` moves it."""
    data = metadata.properties.get("write.data.path", f"{metadata.location.rstrip('/')}/data")
    return Layout(f"{data.rstrip('/')}/twopc-{sink}/{sink_id}")


def metadata_path(metadata: TableMetadata, name: str) -> str:
    """The path of a new metadata file; ``write.metadata.path`` moves it."""
    base = metadata.properties.get("write.metadata.path", f"{metadata.location.rstrip('/')}/metadata")
    return f"{base.rstrip('/')}/{name}"


def data_file(directory: str, transaction: str, number: int) -> str:
    """The path of a data file."""
    return f"{directory}/{transaction}-{number:05d}.parquet"


def entries_file(directory: str, transaction: str) -> str:
    """The path of the file with the entries of a transaction that has very many files."""
    return f"{directory}/{transaction}.entries"


def transaction_of(path: str) -> str | None:
    """The transaction to which a file belongs; None if the name is not one of a sink's."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None
