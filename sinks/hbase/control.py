"""Who drives the sink: one cell, changed only by who has seen what it held (compare and set)."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from sinks.hbase.row_ops import Op, cells_of, look, put, where_equal
from sinks.hbase.staging import STATE, control_row
from twopc.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sinks.hbase.client import HBaseLink
    from sinks.hbase.row_ops import Column
    from twopc.attempt import Claim

_CELL: Final[Column] = (STATE, b"state")


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the cell holds.

    Attributes:
        id: of the sink in this HBase; it goes where the data goes.
        run: of the driver.
        query_id: its query's id.
        driver_epoch: how often the sink was taken over.
        version: the highest that was given out.
        decided: that of this lineage's newest decision.
        revision: how often the cell was written; its timestamp, so that clocks do not matter.
    """

    id: str = ""
    run: str = ""
    query_id: str = ""
    driver_epoch: int = 0
    version: int = 0
    decided: int = 0
    revision: int = 0


#: The names that fields had in version 0.1; both are read.
_FORMER_NAMES: Final = {"lineage": "query_id", "incarnation": "driver_epoch"}


def decode_state(data: bytes) -> State:
    """Read the cell, whichever version wrote it."""
    fields = msgspec.json.decode(data, type=dict[str, object])
    return msgspec.convert({_FORMER_NAMES.get(name, name): field for name, field in fields.items()}, State)


class Control:
    """The cell of one sink.

    Raises:
        Exception: one of ``hbase_errors.FAILURES``, by every method: it cannot be read or written now.
    """

    def __init__(self, link: HBaseLink, *, table: str, sink: str) -> None:
        self._link = link
        self._table = table
        self._sink = sink
        self._row = control_row(sink)

    def read(self) -> State:
        """What it holds; all empty where there is none yet."""
        return self._read()[0]

    def acquire(self, claim: Claim, *, seen: int) -> State:
        """Become the driver, if nobody else did since incarnation ``seen``. Repeating it is harmless.

        Raises:
            FencedError: somebody did.
        """
        while True:
            state, data = self._read()
            if state.run == claim.run:
                return state
            if state.driver_epoch != seen:
                raise self.fenced()
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
            FencedError: somebody else drives.
        """

        def raised(state: State) -> State:
            version = max(time.time_ns() // 1_000_000, state.version + 1, above + 1)
            return msgspec.structs.replace(state, version=version)

        # If the answer is lost it may have been written; then the next one is higher, which is as good.
        return self._change(run, raised).version

    def note(self, run: str, decided: int) -> None:
        """Note what is decided before any of it is applied: who starts from an older copy of the checkpoint must see it.

        Raises:
            FencedError: somebody else drives.
        """
        self._change(run, lambda state: msgspec.structs.replace(state, decided=max(state.decided, decided)))

    def fenced(self) -> FencedError:
        """The error of who is not the driver any more."""
        return FencedError(f"sink {self._sink!r}: another driver has taken it over; this run must stop")

    def _change(self, run: str, change: Callable[[State], State]) -> State:
        """Change the cell as its driver: what it holds then."""
        while True:
            state, data = self._read()
            if state.run != run:
                raise self.fenced()
            changed = change(state)
            if changed == state or self._swap(data, msgspec.structs.replace(changed, revision=state.revision + 1)):
                return changed

    def _read(self) -> tuple[State, bytes | None]:
        [answer] = self._link.ask([look(self._table, self._row, [_CELL])])
        if isinstance(answer, Exception):
            raise answer
        cell = cells_of(answer).get(_CELL)
        return (State(), None) if cell is None else (decode_state(cell.value), cell.value)

    def _swap(self, seen: bytes | None, state: State) -> bool:
        mutation = put(self._row, {_CELL: msgspec.json.encode(state)}, at_ms=state.revision)
        condition = where_equal(self._row, _CELL, seen)
        [answer] = self._link.ask([Op(self._table, self._row, mutations=(mutation,), condition=condition)])
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)
