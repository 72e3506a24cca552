"""Where a sink's files are, relative to the table.

``twopc-<sink>/<id>/<driver epoch>/<batch>/<transaction>-<number>.parquet`` are its data files. A Delta table may have its files
anywhere below its directory, because the log has the partition of each. The id is in the control record. A table may be made anew
from its files (``CONVERT TO DELTA``), and then the sink, too, begins anew; without the id, it would take them for orphans. The
driver epoch and the batch are directories, so that a sweep lists what may hold orphans, and not all that was ever written.

``_twopc/<sink>/<pointer>.json`` are its records. VACUUM deletes nothing in a directory whose name begins with ``_``.
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


def record_file(sink: str, pointer: int) -> str:
    """The path of the record that a pointer names."""
    return f"_twopc/{sink}/{pointer}.json"


def transaction_of(path: str) -> str | None:
    """The transaction to which a file belongs; None if the name is not one of a sink's."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None
