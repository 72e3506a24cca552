"""What the driver needs to add a task's files to the table, whatever the table's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from twopc.fenced_committer import Prepared


@dataclass(frozen=True, kw_only=True)
class LakeHandle(Prepared):
    """See :class:`Prepared`: one or more files that are not in the table yet.

    Attributes:
        attempt: names the attempt at the batch among all of this sink's: the driver epoch, and the attempt's number.
        batch: the batch, for the directory of its files.
        entries: the files, see :mod:`twopc.sinks.lake.entries`; empty if they are too many for a handle.
        entries_file: the file that has the entries instead.
        entries_digest: the SHA-256 of the entries in that file.
    """

    attempt: str
    batch: int
    entries: bytes
    entries_file: str = ""
    entries_digest: str = ""


HandleT = TypeVar("HandleT", bound=LakeHandle)
