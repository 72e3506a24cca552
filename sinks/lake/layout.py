"""Define the paths of a sink's data files: ``twopc-<sink>/<id>/<driver epoch>/<batch>/<transaction>-<number>.parquet``.

The id is in the control record. Two Iceberg tables may share a ``write.data.path``, and their sinks may have the same name. If
a Delta table is recreated from its files (``CONVERT TO DELTA``), the sink starts from scratch. Without the id, a sink would
treat another sink's files, or its own earlier files, as orphans. The driver epoch and the batch are directories, so that a
sweep lists only directories that may contain orphans.
"""

from __future__ import annotations

import re
from typing import Final

_FILE: Final = re.compile(r"(.+-[0-9]+-[0-9a-f]{32})(?:-[0-9]{5}\.parquet|\.entries)")


def root(sink: str, sink_id: str) -> str:
    """Return the directory for a sink's data files."""
    return f"twopc-{sink}/{sink_id}"


def directory(base: str, epoch: int, batch: int) -> str:
    """Return a batch's directory, below the sink's directory."""
    return f"{base}/{epoch}/{batch}"


def data_file(where: str, transaction: str, number: int) -> str:
    """Return a data file's path in a batch's directory."""
    return f"{where}/{transaction}-{number:05d}.parquet"


def entries_file(where: str, transaction: str) -> str:
    """Return the path of the file that lists a transaction's entries if the list is too long for the handle."""
    return f"{where}/{transaction}.entries"


def transaction_of(path: str) -> str | None:
    """Return the transaction in a file's name; None if no sink writes files with this name."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None
