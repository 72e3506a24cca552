"""The control record in HBase: one cell, changed only by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from twopc.sinks.hbase.errors import AbsentTableError
from twopc.sinks.hbase.row_ops import cells_of, look, where_equal, write
from twopc.sinks.hbase.staging import STATE, own_row
from twopc.sinks.staged.control import Control, ControlRecord, decode_control

if TYPE_CHECKING:
    from twopc.sinks.hbase.client import HBaseClient
    from twopc.sinks.hbase.row_ops import Column

_CELL: Final[Column] = (STATE, b"state")


class State(Control, frozen=True, kw_only=True):
    """The content of the cell.

    Attributes:
        revision: how many times the cell was written. It is the cell's timestamp, so that clocks do not matter.
    """

    revision: int = 0


def decode_state(data: bytes) -> State:
    """Decode the cell's content."""
    return decode_control(msgspec.json.decode(data, type=dict[str, object]), State)


class ControlCell(ControlRecord[State]):
    """See :class:`ControlRecord`. Every write is durable."""

    def __init__(self, client: HBaseClient, *, table: str, sink: str) -> None:
        super().__init__(sink)
        self._client = client
        self._table = table
        self._row = own_row(sink, "control")

    def read(self) -> State:
        """See :class:`ControlRecord`; an empty state if the table does not exist yet."""
        try:
            return super().read()
        except AbsentTableError:
            return State()

    def _load(self) -> tuple[State, bytes | None]:
        cell = cells_of(self._client.execute_one(look(self._table, self._row, [_CELL]))).get(_CELL)
        return (State(), None) if cell is None else (decode_state(cell.value), cell.value)

    def _swap(self, stored: bytes | None, record: State, *, durable: bool) -> bool:
        del durable
        state = msgspec.structs.replace(record, revision=record.revision + 1)
        cells, condition = {_CELL: msgspec.json.encode(state)}, where_equal(self._row, _CELL, stored)
        op = write(self._table, self._row, cells, at_ms=state.revision, condition=condition)
        return bool(self._client.execute_one(op))
