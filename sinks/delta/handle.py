"""Define the handle for a task's files in a Delta table."""

from __future__ import annotations

from dataclasses import dataclass

from twopc.sinks.lake.handle import LakeHandle


@dataclass(frozen=True, kw_only=True)
class DeltaHandle(LakeHandle):
    """See :class:`LakeHandle`.

    Attributes:
        table: a fingerprint of the columns and partitioning that the table had when the files were written.
    """

    table: str
