"""What the driver needs to add a task's files to the table."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.fenced_committer import Prepared


@dataclass(frozen=True)
class IcebergHandle(Prepared):
    """See :class:`Prepared`: one or more files that no snapshot names yet.

    Attributes:
        attempt: names the attempt at the batch among all of this sink's: the driver epoch, and the attempt's number.
        batch: the batch, for the directory of its files.
        schema_id: the table's schema with which the files were written.
        spec_id: the table's partitioning with which they were written.
        entries: the files, see :mod:`twopc.sinks.iceberg.entries`; empty if they are too many for a handle.
        entries_file: the file that has the entries instead.
        entries_digest: the SHA-256 of the entries in that file.
    """

    attempt: str
    batch: int
    schema_id: int
    spec_id: int
    entries: bytes
    entries_file: str = ""
    entries_digest: str = ""
