"""How far the newest decision is applied: one row, in which a newer decision replaces all that the older one left.

It proves what is committed and keeps a slice that was given up from being applied. That no row is applied twice does not
rest on it, but on the rows themselves (``hbase_apply``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sinks.hbase.row_ops import Op, cells_of, delete, look, put, where_equal, where_none_since
from sinks.hbase.staging import STATE, fence_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sinks.hbase.client import HBaseLink
    from sinks.hbase.row_ops import Column
    from sinks.hbase.writer import HBaseHandle

_BASE: Final[Column] = (STATE, b"base")
_TOP: Final[Column] = (STATE, b"top")
_BURIED: Final = b"buried"


class Progress(NamedTuple):
    """What the row says.

    Attributes:
        base: version of the newest decision of which anything was applied; 0: of none.
        top: the highest timestamp that it may have used.
        done: of that decision's slices that were begun: how many chunks are applied.
        buried: those that were given up.
    """

    base: int
    top: int
    done: Mapping[str, int]
    buried: frozenset[str]


class Fence:
    """The row of one sink.

    Raises:
        Exception: one of ``hbase_errors.FAILURES``, by every method: it cannot be read or written now.
    """

    def __init__(self, link: HBaseLink, *, table: str, sink: str) -> None:
        self._link = link
        self._table = table
        self._row = fence_row(sink)

    def read(self) -> Progress:
        """What it says now."""
        [answer] = self._link.ask([look(self._table, self._row, family=STATE)])
        if isinstance(answer, Exception):
            raise answer
        cells = {column: cell.value for column, cell in cells_of(answer).items()}
        base, top = int(cells.pop(_BASE, b"0")), int(cells.pop(_TOP, b"0"))
        slices = {column[1].decode(): value for column, value in cells.items()}
        return Progress(
            base,
            top,
            {uuid: int(value) for uuid, value in slices.items() if value != _BURIED},
            frozenset(uuid for uuid, value in slices.items() if value == _BURIED),
        )

    def raise_to(self, base: int, top: int) -> None:
        """Let a decision replace an older one. Nothing happens where this one or a newer one is there."""
        cells = {_BASE: b"%d" % base, _TOP: b"%d" % top}
        mutations = delete(self._row, family=STATE, up_to_ms=base - 1), put(self._row, cells, at_ms=base)
        condition = where_none_since(self._row, _BASE, base)
        self._do(Op(self._table, self._row, mutations=mutations, condition=condition))

    def begin(self, uuid: str, base: int) -> None:
        """Note, before anything of a slice is applied, that something may be. Not if it is begun or buried."""
        self._mark(uuid, b"0", base)

    def bury(self, uuid: str, base: int) -> None:
        """Give a slice up, unless it is begun."""
        self._mark(uuid, _BURIED, base)

    def note(self, uuid: str, base: int, done: int) -> None:
        """Note how many chunks are applied; by its timestamp a lower number never replaces a higher one."""
        mutation = put(self._row, {(STATE, uuid.encode()): b"%d" % done}, at_ms=base + done)
        self._do(Op(self._table, self._row, mutations=(mutation,)))

    def _mark(self, uuid: str, value: bytes, base: int) -> None:
        column = (STATE, uuid.encode())
        mutation = put(self._row, {column: value}, at_ms=base)
        condition = where_equal(self._row, column, None)
        self._do(Op(self._table, self._row, mutations=(mutation,), condition=condition))

    def _do(self, op: Op) -> None:
        [answer] = self._link.ask([op])
        if isinstance(answer, Exception):
            raise answer


def top_of(handles: Sequence[HBaseHandle], base: int) -> int:
    """The highest timestamp that a decision may use: that of its last task, or of its longest slice's progress."""
    return base + max((max(handle.partition, handle.chunks) for handle in handles), default=0)


def state_of(handle: HBaseHandle, progress: Progress, base: int, *, is_whole: bool) -> str:
    """How it stands with a slice.

    Args:
        handle: the slice.
        progress: read after the slice was looked at.
        base: its decision's version.
        is_whole: whether each of its chunks was there.

    Returns:
        STALE (a newer decision was applied), COMMITTED, WHOLE (to be applied), LOST (nothing of it was applied, nor can
        it be), or TORN (some of it may be applied, and the rest is gone).
    """
    if progress.base > base:
        return "STALE"
    done = progress.done.get(handle.uuid) if progress.base == base else None
    if done == handle.chunks:
        return "COMMITTED"
    if handle.uuid in progress.buried:
        return "LOST"
    if is_whole:
        return "WHOLE"
    return "LOST" if done is None else "TORN"
