"""Define the handle of a task's files, for tables of every format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from twopc.fenced_committer import Prepared


@dataclass(frozen=True, kw_only=True)
class LakeHandle(Prepared):
    """See :class:`Prepared`: one or more files that are not in the table yet.

    Attributes:
        attempt: the driver epoch and the attempt's number, which together are unique for this sink.
        batch: the id of the batch, which is in the path of its files.
        entries: the files, see :mod:`twopc.sinks.lake.entries`; empty if a handle cannot hold so many.
        entries_file: the path of the file that then has the entries.
        entries_digest: the SHA-256 of the entries in that file.
    """

    attempt: str
    batch: int
    entries: bytes
    entries_file: str = ""
    entries_digest: str = ""


HandleT = TypeVar("HandleT", bound=LakeHandle)
