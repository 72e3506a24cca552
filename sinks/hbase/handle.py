"""What the driver holds of a slice in HBase."""

from __future__ import annotations

from dataclasses import dataclass

from sinks.hbase.staging import slice_row
from sinks.staged.slices import StagedHandle


@dataclass(frozen=True, kw_only=True)
class HBaseHandle(StagedHandle):
    """A prepared slice; its checksum is a SHA-256 over the chunks' SHA-256.

    Attributes:
        partition: of the task; orders the slices of a decision.
        table: that the slice is applied to.
        operation: HBase's name of what is done there.
        chunks: how many chunks it has.
        distinct: whether no row key is in two chunks, so that they may be applied in any order.
    """

    partition: int
    table: str
    operation: str
    chunks: int
    distinct: bool

    def row(self, sink: str) -> bytes:
        """Its row in the sink's own table."""
        return slice_row(sink, self.driver_epoch, self.uuid)
