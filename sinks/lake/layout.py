"""Define the paths of a sink's data files.

A path is ``twopc-<sink>/<id>/<driver epoch>/<batch // 1000>/<batch>/<transaction>-<number>.parquet``.

The id is in the control record. Two Iceberg tables may share a ``write.data.path``, and their sinks may have the same name. If
a Delta table is recreated from its files (``CONVERT TO DELTA``), the sink starts from scratch. Without the id, a sink would
treat another sink's files, or its own earlier files, as orphans. The driver epoch and the batch are directories, so that a
sweep lists only directories that may contain orphans. A directory contains the directories of at most 1000 batches, because a
start lists it, and because some file systems limit the number of entries in a directory (HDFS: 1,048,576).

A copy of a data file (see :mod:`twopc.sinks.lake.renewal`) is in the same directory. Its name adds the Unix time of the copy, in
milliseconds, and a random number: ``<transaction>-<number>-copy-<time>-<random>.parquet``.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

_COPY: Final = r"-copy-([0-9]+)-[0-9a-f]{32}"
_BATCHES_PER_GROUP: Final = 1000
_FILE: Final = re.compile(rf"(.+-[0-9]+-[0-9a-f]{{32}})(?:-[0-9]{{5,}}(?:{_COPY})?\.parquet|\.entries)")


def root(sink: str, sink_id: str) -> str:
    """Return the directory for a sink's data files."""
    return f"twopc-{sink}/{sink_id}"


def group_of(batch: int) -> int:
    """Return the number of the group to which a batch belongs."""
    return batch // _BATCHES_PER_GROUP


def directory(base: str, epoch: int, batch: int) -> str:
    """Return a batch's directory, below the sink's directory."""
    return f"{base}/{epoch}/{group_of(batch)}/{batch}"


def data_file(where: str, transaction: str, number: int) -> str:
    """Return a data file's path in a batch's directory."""
    return f"{where}/{transaction}-{number:05d}.parquet"


def place_of(path: str, base: str) -> tuple[int, int] | None:
    """Return the driver epoch and the batch in a path; None if the file is not below the sink's directory.

    The table may list the same directory under another prefix, so only the last two names of ``base`` count.
    """
    own = "/".join(base.split("/")[-2:])
    found = re.search(rf"(?:^|/){re.escape(own)}/([0-9]+)/[0-9]+/([0-9]+)/[^/]+$", path)
    return (int(found[1]), int(found[2])) if found else None


def new_copy(path: str, at_ms: int) -> str:
    """Return a new path for a copy of a data file, or of its copy. No two copies have the same path."""
    return f"{original_of(path).removesuffix('.parquet')}-copy-{at_ms}-{uuid.uuid4().hex}.parquet"


def original_of(path: str) -> str:
    """Return the path of a copy's original. A file that is not a copy is its own original."""
    return re.sub(rf"{_COPY}(\.parquet)$", r"\2", path)


def directory_of(path: str) -> str:
    """Return the directory of a file."""
    return path.rpartition("/")[0]


def copied_ms(path: str) -> int | None:
    """Return the Unix time at which a copy was made, in milliseconds; None if the file is not a copy."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return int(found[2]) if found and found[2] else None


def is_entries_file(path: str) -> bool:
    """Return whether a task's list of files is in this file."""
    return path.endswith(".entries")


def entries_file(where: str, transaction: str) -> str:
    """Return the path of the file that lists a transaction's entries if the list is too long for the handle."""
    return f"{where}/{transaction}.entries"


def transaction_of(path: str) -> str | None:
    """Return the transaction in a file's name; None if no sink writes files with this name."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    return found[1] if found else None
