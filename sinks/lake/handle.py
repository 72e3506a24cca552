"""Define the handle for a task's files in any table format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from twopc.fenced_committer import Prepared


@dataclass(frozen=True, kw_only=True)
class LakeHandle(Prepared):
    """Identifies a task's files that are not in the table yet; see :class:`Prepared`.

    Attributes:
        attempt: the driver epoch and the attempt's number. Together, they are unique for this sink.
        batch: the batch id, which is part of the files' paths.
        entries: the list of files (see :mod:`twopc.sinks.lake.entries`); empty if the list is too long for a handle.
        entries_file: the path of the file that contains a long list; otherwise empty.
        entries_digest: the SHA-256 of the file at ``entries_file``.
    """

    attempt: str
    batch: int
    entries: bytes
    entries_file: str = ""
    entries_digest: str = ""


HandleT = TypeVar("HandleT", bound=LakeHandle)
