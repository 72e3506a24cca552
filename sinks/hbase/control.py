"""The control record in HBase: one cell, changed only by compare-and-set."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from sinks.hbase.row_ops import Op, cells_of, look, put, where_equal
from sinks.hbase.staging import STATE, control_row
from sinks.staged.control import Control, decode_control, fenced

if TYPE_CHECKING:
    from collections.abc import Callable

    from sinks.hbase.client import HBaseClient
    from sinks.hbase.row_ops import Column
    from twopc.attempt import Claim

_CELL: Final[Column] = (STATE, b"state")


class State(Control, frozen=True, kw_only=True):
    """What the cell holds.

    Attributes:
        revision: how often the cell was written. It is the cell's timestamp, so that clocks do not matter.
    """

    revision: int = 0


def decode_state(data: bytes) -> State:
    """Read the cell, whichever version wrote it."""
    return decode_control(msgspec.json.decode(data, type=dict[str, object]), State)


class ControlCell:
    """The cell of one sink.

    Its loops repeat a compare-and-set without a pause: a lost round means that another driver has written.

    Raises:
        Exception: one of ``sinks.hbase.errors.FAILURES``, from every method: the cell cannot be read or written now.
    """

    def __init__(self, client: HBaseClient, *, table: str, sink: str) -> None:
        self._client = client
        self._table = table
        self._sink = sink
        self._row = control_row(sink)

    def read(self) -> State:
        """What it holds; an empty state if there is no cell yet."""
        return self._read()[0]

    def acquire(self, claim: Claim, *, seen: int) -> State:
        """Make the claimant the owner, if the driver epoch is still ``seen``. Repeating it is harmless.

        Raises:
            FencedError: somebody else acquired the sink since.
        """
        while True:
            state, data = self._read()
            if state.run == claim.run:
                return state
            if state.driver_epoch != seen:
                raise fenced(self._sink)
            self._swap(
                data,
                msgspec.structs.replace(
                    state,
                    id=state.id or uuid.uuid4().hex,
                    run=claim.run,
                    query_id=claim.query_id,
                    decided=state.decided if state.query_id == claim.query_id else 0,
                    driver_epoch=seen + 1,
                    revision=state.revision + 1,
                ),
            )

    def reserve(self, run: str, *, above: int) -> int:
        """A version above ``above``, above every earlier one, and not below the time in ms.

        Raises:
            FencedError: somebody else owns the sink.
        """

        def raised(state: State) -> State:
            version = max(time.time_ns() // 1_000_000, state.version + 1, above + 1)
            return msgspec.structs.replace(state, version=version)

        # A lost answer may hide a version that was written; the retry reserves a higher one, which is as good.
        return self._change(run, raised).version

    def record_decision(self, run: str, decided: int) -> None:
        """Record the owner's newest decision.

        Raises:
            FencedError: somebody else owns the sink.
        """
        self._change(run, lambda state: msgspec.structs.replace(state, decided=max(state.decided, decided)))

    def _change(self, run: str, change: Callable[[State], State]) -> State:
        """Change the cell as its owner, and return what it holds then."""
        while True:
            state, data = self._read()
            if state.run != run:
                raise fenced(self._sink)
            changed = change(state)
            if changed == state or self._swap(data, msgspec.structs.replace(changed, revision=state.revision + 1)):
                return changed

    def _read(self) -> tuple[State, bytes | None]:
        result = self._client.execute_one(look(self._table, self._row, [_CELL]))
        cell = cells_of(result).get(_CELL)
        return (State(), None) if cell is None else (decode_state(cell.value), cell.value)

    def _swap(self, seen: bytes | None, state: State) -> bool:
        mutation = put(self._row, {_CELL: msgspec.json.encode(state)}, at_ms=state.revision)
        condition = where_equal(self._row, _CELL, seen)
        return bool(self._client.execute_one(Op(self._table, self._row, mutations=(mutation,), condition=condition)))
