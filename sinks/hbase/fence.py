"""In one row, record the progress of the newest decision. A newer decision completely replaces an older one.

The row proves which slices are committed, and its tombstones prevent the driver from applying lost slices. This row does not
prevent a data row from being applied twice. The marks in the data rows prevent that (``twopc.sinks.hbase.apply``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from twopc.sinks.hbase.row_ops import Op, cells_of, delete, look, put, where_equal, where_none_since, write
from twopc.sinks.hbase.staging import STATE, own_row
from twopc.sinks.staged.slices import SliceState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from twopc.sinks.hbase.client import HBaseClient
    from twopc.sinks.hbase.row_ops import Column
    from twopc.sinks.hbase.staging import HBaseHandle

_BASE: Final[Column] = (STATE, b"base")
_TOP: Final[Column] = (STATE, b"top")
#: A tombstone's value consists of this word (which dates from version 0.1) and the lost slice's ``further_ms``.
_TOMBSTONE: Final = b"buried"


class Progress(NamedTuple):
    """The content of the progress row.

    Attributes:
        base: the version of the newest decision that a driver has begun to apply, or 0.
        top: the highest timestamp that the decision ``base`` may have used.
        done: for each slice that a driver has begun to apply for the decision ``base``, the number of applied chunks. The
            number is 0 until all chunks are applied.
        tombstones: the slices that no driver may apply, with the :attr:`HBaseHandle.further_ms` of each slice.
    """

    base: int
    top: int
    done: Mapping[str, int]
    tombstones: Mapping[str, int]


class Fence:
    """Reads and writes one sink's progress row.

    Every method raises one of ``FAILURES`` if the row cannot be read or written now.
    """

    def __init__(self, client: HBaseClient, *, table: str, sink: str) -> None:
        self._client = client
        self._table = table
        self._row = own_row(sink, "fence")

    def read(self, uuids: Iterable[str] | None = None) -> Progress:
        """Read the row, or only the base, the top and these slices.

        Reading the complete row takes longer after many batches. Until HBase flushes the table (by default, after an hour), it
        still has to skip the columns of all slices of earlier decisions. With 40,000 such slices, a read took half a second.
        """
        if uuids is None:
            read = look(self._table, self._row, family=STATE)
        else:
            read = look(self._table, self._row, [_BASE, _TOP, *((STATE, uuid.encode()) for uuid in uuids)])
        result = self._client.execute_one(read)
        cells = {column: cell.value for column, cell in cells_of(result).items()}
        base, top = int(cells.pop(_BASE, b"0")), int(cells.pop(_TOP, b"0"))
        slices = {column[1].decode(): value for column, value in cells.items()}
        return Progress(
            base,
            top,
            {uuid: int(value) for uuid, value in slices.items() if not value.startswith(_TOMBSTONE)},
            {
                uuid: int(value.removeprefix(_TOMBSTONE) or 0)
                for uuid, value in slices.items()
                if value.startswith(_TOMBSTONE)
            },
        )

    def raise_to(self, base: int, top: int) -> None:
        """Replace an older decision with this one. Do nothing if the row contains this decision or a newer one."""
        cells = {_BASE: b"%d" % base, _TOP: b"%d" % top}
        mutations = delete(self._row, family=STATE, up_to_ms=base - 1), put(self._row, cells, at_ms=base)
        condition = where_none_since(self._row, _BASE, base)
        self._client.execute_one(Op(self._table, self._row, mutations=mutations, condition=condition))

    def begin(self, uuid: str, base: int) -> None:
        """Record that a driver begins to apply a slice.

        Do nothing if a driver has already begun the slice, or if the slice has a tombstone.
        """
        self._mark(uuid, b"0", base)

    def tombstone(self, handle: HBaseHandle, base: int) -> None:
        """Set a slice's tombstone, unless a driver has already begun to apply the slice."""
        self._mark(handle.uuid, _TOMBSTONE + b"%d" % handle.further_ms, base)

    def record(self, uuid: str, base: int, done: int) -> None:
        """Record that all of a slice's chunks have been applied. The timestamp is later than that of :meth:`begin`."""
        cells = {(STATE, uuid.encode()): b"%d" % done}
        self._client.execute_one(write(self._table, self._row, cells, at_ms=base + done))

    def _mark(self, uuid: str, value: bytes, base: int) -> None:
        column = (STATE, uuid.encode())
        absent = where_equal(self._row, column, None)
        self._client.execute_one(write(self._table, self._row, {column: value}, at_ms=base, condition=absent))


def starts_of(handles: Collection[HBaseHandle], base: int, tombstones: Mapping[str, int]) -> dict[HBaseHandle, int]:
    """Return each slice's first timestamp under the decision with version ``base``.

    No two slices share a timestamp, and the timestamps increase in the order of the slices' partitions. A slice that
    replaces a lost slice has a higher partition number than all other slices, so it must also have higher timestamps. But
    when the other slices were first applied, some of their timestamps may have followed the timestamps that were reserved
    for the lost slice. This function therefore adds the lost slice's ``further_ms`` to all timestamps.
    """
    known = {handle.uuid for handle in handles}
    at_ms = base + sum(further_ms for uuid, further_ms in tombstones.items() if uuid not in known)
    found: dict[HBaseHandle, int] = {}
    for handle in sorted(handles, key=lambda handle: handle.partition):
        found[handle] = at_ms + handle.partition
        at_ms += handle.further_ms
    return found


def top_of(handles: Sequence[HBaseHandle], base: int) -> int:
    """Return the highest timestamp that a decision may use, either for its last task or for the record of its longest slice."""
    starts = starts_of(handles, base, {})
    return max((max(at_ms + one.further_ms, base + one.chunks) for one, at_ms in starts.items()), default=base)


def state_of(handle: HBaseHandle, progress: Progress, base: int, *, is_whole: bool) -> SliceState:
    """Derive a slice's state.

    ``is_whole`` says whether all of the slice's chunks existed before the driver read ``progress``.
    """
    if progress.base > base:
        return SliceState.STALE
    done = progress.done.get(handle.uuid) if progress.base == base else None
    if done == handle.chunks:
        return SliceState.COMMITTED
    if handle.uuid in progress.tombstones:
        return SliceState.LOST
    if done is None:
        return SliceState.PREPARED if is_whole else SliceState.LOST
    return SliceState.APPLYING if is_whole else SliceState.TORN
