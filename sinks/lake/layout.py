"""Where a sink's data files are: ``twopc-<sink>/<id>/<driver epoch>/<batch>/<transaction>-<number>.parquet``.

The id is in the control record. Two Iceberg tables may have one ``write.data.path``, and their sinks one name. A Delta table may
be made anew from its files (``CONVERT TO DELTA``), and then the sink, too, begins anew. Without the id, a sink would take the
files of the other one, or its own former ones, for orphans. The driver epoch and the batch are directories, so that a sweep lists
what may hold orphans, and not all that was ever written.
"""

from __future__ import annotations

import re
from typing import Final

_FILE: Final = re.compile(r"(.+-[0-9]+-[0-9a-f]{32})(?:-[0-9]{5}\.parquet|\.entries)")


def root(sink: str, sink_id: str) -> str:
    """The directory of a sink's data files."""
    return f"twopc-{sink}/{sink_id}"


def directory(base: str, epoch: int, batch: int) -> str:
    """The directory of a batch, below that of the sink."""
    return f"{base}/{epoch}/{batch}"


def data_file(where: str, transaction: str, number: int) -> str:
    """The path of a data file in a batch's directory."""
    return f"{where}/{transaction}-{number:05d}.parquet"


def entries_file(where: str, transaction: str) -> str:
    """The path of the file with the entries of a transaction that has very many files."""
    return f"{where}/{transaction}.entries"


def transaction_of(path: str) -> str | None:
    """The transaction to which a file belongs; None if the name is not one of a sink's."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None
