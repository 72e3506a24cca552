"""What the driver needs to add a task's files to the table."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.fenced_committer import Prepared


@dataclass(frozen=True)
class DeltaHandle(Prepared):
    """See :class:`Prepared`: one or more files that no version of the table names yet.

    Attributes:
        attempt: names the attempt at the batch among all of this sink's: the driver epoch, and the attempt's number.
        batch: the batch, for the directory of its files.
        table: a fingerprint of the table's columns and partitioning with which the files were written.
        entries: the files, see :mod:`twopc.sinks.delta.entries`; empty if they are too many for a handle.
        entries_file: the file that has the entries instead.
        entries_digest: the SHA-256 of the entries in that file.
    """

    attempt: str
    batch: int
    table: str
    entries: bytes
    entries_file: str = ""
    entries_digest: str = ""
