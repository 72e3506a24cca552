"""Store the control record in HBase, in one cell that changes only by compare-and-set.

The cell's timestamp is the region server's time. If the record's row was deleted before, the deletion hides every cell with an
earlier timestamp, even a cell that is written later. Only a major compaction removes the deletion. If a conditional put replaces
a cell, the server never gives the put an earlier timestamp than the replaced cell has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.sinks.hbase.row_ops import Op, cells_of, look, put, where_equal
from twopc.sinks.hbase.staging import STATE, own_row

if TYPE_CHECKING:
    from twopc.sinks.hbase.row_ops import Column
    from twopc.sinks.staged.client import StoreClient

_CELL: Final[Column] = (STATE, b"state")


class ControlCell:
    """Reads and writes one sink's control cell. Every write is durable."""

    def __init__(self, *, table: str, sink: str) -> None:
        self._table = table
        self._row = own_row(sink, "control")

    def load(self, client: StoreClient[Any]) -> bytes | None:
        """Read the cell; return None if it does not exist yet."""
        cell = cells_of(client.execute_one(look(self._table, self._row, [_CELL]))).get(_CELL)
        return None if cell is None else cell.value

    def swap(self, client: StoreClient[Any], old: bytes | None, new: bytes) -> bool:
        """Write the cell if it still contains ``old``.

        Raises:
            ConfigurationError: the new record is hidden by a deletion.
        """
        condition = where_equal(self._row, _CELL, old)
        op = Op(self._table, self._row, mutations=(put(self._row, {_CELL: new}),), condition=condition)
        is_written = bool(client.execute_one(op))
        if is_written and old is None and self.load(client) is None:
            raise ConfigurationError(
                f"the control record in row {self._row!r} of table {self._table!r} was written, but is not visible. The row "
                "was deleted earlier, and the timestamp of that deletion is ahead of the region server's clock. No data is "
                f"at risk. To remove the deletion, run flush {self._table!r} and then major_compact {self._table!r} in the "
                "HBase shell. Also synchronize the clocks of the region servers (NTP). Then restart the query"
            )
        return is_written
