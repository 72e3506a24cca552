"""Store the control record in HBase, in one cell that changes only by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc import control
from twopc.sinks.hbase.row_ops import cells_of, look, where_equal, write
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

        The cell's timestamp is the record's revision, so it does not depend on clocks.
        """
        condition = where_equal(self._row, _CELL, old)
        op = write(self._table, self._row, {_CELL: new}, at_ms=control.decode(new).revision, condition=condition)
        return bool(client.execute_one(op))
