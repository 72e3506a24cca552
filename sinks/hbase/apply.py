"""Apply decided slices, so that each row is applied once. Any driver may safely repeat any call.

A mark in each row prevents the driver from applying the row twice. The mark changes in the same atomic step as the data:

* ``Put``: the cells' timestamp. It begins at the decision's version and increases from task to task. Writing the cells
  again changes nothing, and cells with a later timestamp stay. If two chunks of a slice may contain the same key, each
  chunk has its own timestamp. The key's last row therefore wins, even if the chunks are applied several times or in a
  different order.
* ``Delete``: the deletion's timestamp, which is the decision's version. A deletion never removes a newer cell, even if
  the deletion is applied again much later.
* ``Increment``, ``Append``: a marker cell ``twopc:<sink>``. The marker contains the newest decision that changed the
  row, and the number of applied chunks for each task. A newer decision replaces the marker, so a row never has more than
  one marker. Only the marker's value is compared. Like the row's cells, the marker has the time of the commit as its timestamp.
  The mapping's cells are all in one family, and the marker is in the same family. Another client's deletion therefore cannot
  hide the marker and leave the cells visible.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import BadRecordError
from twopc.sinks.hbase import staging
from twopc.sinks.hbase.fence import starts_of
from twopc.sinks.hbase.mappings import MARKED, add
from twopc.sinks.hbase.row_ops import Op, append, cells_of, look, put, where_equal
from twopc.threads import at_once

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    from twopc.sinks.hbase.client import HBaseClient
    from twopc.sinks.hbase.fence import Fence
    from twopc.sinks.hbase.messages import Message
    from twopc.sinks.hbase.row_ops import Cell, Column
    from twopc.sinks.hbase.staging import HBaseHandle

_BASE: Final = struct.Struct(">Q")
_TASK: Final = struct.Struct(">II")
_SHOWN: Final = 3
#: How many chunks of a slice, and how many slices, are applied concurrently if their order does not matter.
AT_ONCE: Final = 4


class Applier:
    """Applies one sink's slices. ``table`` is the sink's own table."""

    def __init__(self, client: HBaseClient, fence: Fence, *, table: str, sink: str) -> None:
        self._client = client
        self._fence = fence
        self._table = table
        self._sink = sink

    def apply(
        self, handle: HBaseHandle, base: int, decided: Collection[HBaseHandle], *, has_lost: bool = True
    ) -> list[str]:
        """Apply all chunks of a slice. ``base`` is the decision's version, and ``decided`` contains the decision's slices.

        An earlier call may have applied some of the chunks. This method still processes every chunk, because a snapshot of the
        data table may have been restored since.

        Returns:
            the errors that block the slice; empty if there are none.

        Raises:
            Exception: one of ``FAILURES``, if the fence cannot be read or written.
        """
        self._fence.begin(handle.uuid, base)
        progress = self._fence.read(None if has_lost else [handle.uuid])
        if progress.base != base or handle.uuid not in progress.done:
            return []  # there is a newer decision or a tombstone; the evidence shows which
        start_ms = starts_of(decided, base, progress.tombstones)[handle]
        with contextlib.closing(self._apply_chunks(handle, base, start_ms)) as chunks:
            for failed in chunks:
                if failed is None:
                    return []  # the evidence will show that the chunk is missing
                if failed:
                    return failed
        self._fence.record(handle.uuid, base, handle.chunks)
        return []

    def _apply_chunks(self, handle: HBaseHandle, base: int, start_ms: int) -> Generator[list[str] | None]:
        """Yield the result of each chunk, in order.

        When the iterator is closed, it waits for running chunks, and starts no more chunks.
        """
        todo = range(handle.chunks)
        if not handle.distinct:  # the next chunk may contain the same row, so it waits until this chunk is applied
            yield from (self.apply_chunk(handle, base, start_ms, done) for done in todo)
            return
        chunks = at_once(
            lambda done: self.apply_chunk(handle, base, start_ms, done), todo, threads=AT_ONCE, name="twopc-hbase"
        )
        with contextlib.closing(chunks) as found:
            yield from found

    def apply_chunk(self, handle: HBaseHandle, base: int, start_ms: int, done: int) -> list[str] | None:
        """Apply the chunk that follows the first ``done`` chunks. ``start_ms`` is the slice's first timestamp.

        Return the errors that block this chunk, or None if the chunk is missing.
        """
        [answer] = self._client.execute([staging.look_at_chunk(self._table, handle.row(self._sink), done)])
        if isinstance(answer, Exception):
            return [f"chunk {done}: {self._client.reason(answer)}"]
        cells = cells_of(answer)
        if not cells:
            return None
        chunk = staging.unpack(next(iter(cells.values())).value)
        mutations = [action.mutation for action in chunk.action]
        if handle.operation in MARKED:
            return self._apply_marked(handle, base, done, mutations)
        for mutation in mutations:
            if handle.operation == "DELETE":
                _stamp_deletion(mutation, base)
            else:
                mutation.timestamp = start_ms + min(done, handle.further_ms)  # one timestamp per chunk or slice
        # Without conditions, HBase writes many rows in one step, which is about seven times as fast.
        if self._client.send_whole(handle.table, chunk):
            return []
        ops = [Op(handle.table, mutation.row, mutations=(mutation,)) for mutation in mutations]
        return self._failures(self._client.execute(ops), mutations)

    def _apply_marked(self, handle: HBaseHandle, base: int, done: int, mutations: Sequence[Message]) -> list[str]:
        """Apply mutations to different rows, each together with its row's marker.

        If a compare-and-set fails, the marker has changed, so retry immediately.
        """
        left = list(mutations)
        column = (_family(left[0]), marker_qualifier(self._sink))
        # HBase counters wrap around silently, so check them again.
        counters = places_of(left[0]) if handle.operation == "INCREMENT" else []
        while left:
            looked = self._client.execute([look(handle.table, mutation.row, [column, *counters]) for mutation in left])
            if failed := self._failures(looked, left):
                return failed
            todo: list[tuple[Message, Op]] = []
            for mutation, result in zip(left, looked, strict=True):
                held = cells_of(result)
                seen = held[column].value if column in held else None
                if seen is not None and _newest_in(seen) > base and self._fence.read(()).base <= base:
                    return [self._not_ours(mutation.row, column)]
                new = _advance(seen, base, handle.partition, done)
                if new is not None:
                    if counters and (why := overflow_of(mutation, held)):
                        return [
                            (
                                f"row {mutation.row!r}: {why}. Another client has changed this cell since the batch was "
                                "checked. Correct the cell's value"
                            )
                        ]
                    together = mutation, *_write_marker(mutation.row, column, new, held)
                    condition = where_equal(mutation.row, column, seen)
                    todo.append((mutation, Op(handle.table, mutation.row, mutations=together, condition=condition)))
            answers = self._client.execute([op for _, op in todo])
            left = [mutation for mutation, _ in todo]
            if failed := self._failures(answers, left):
                return failed
            # Another driver has changed the marker, or this call has changed the marker, but the response was lost.
            left = [mutation for mutation, answer in zip(left, answers, strict=True) if not answer]
        return []

    def _failures(self, answers: Sequence[Any], mutations: Sequence[Message]) -> list[str]:
        failed = [
            f"row {mutation.row!r}: {self._client.reason(answer)}"
            for mutation, answer in zip(mutations, answers, strict=True)
            if isinstance(answer, Exception)
        ]
        more = [f"and {len(failed) - _SHOWN} more rows"] if len(failed) > _SHOWN else []
        return [*failed[:_SHOWN], *more]

    def _not_ours(self, row: bytes, column: Column) -> str:
        """Describe a marker that is newer than this sink's newest decision.

        This sink did not write that marker, because a decision raises the fence before it writes markers.
        """
        return (
            f"row {row!r}: another sink or query with the same name, {self._sink!r}, has written the marker "
            f"{b':'.join(column).decode()}. Therefore, it is unknown whether this batch's change was already applied to the "
            "row. The row was not written this time. Rename the other sink, because all sinks that write to a table need "
            "different names. If the row does not contain this batch's change yet, delete the marker and restart the query"
        )


def marker_qualifier(sink: str) -> bytes:
    """Return the marker's column qualifier. The marker is in the same family as the mapping's cells."""
    return f"twopc:{sink}".encode()


def _stamp_deletion(mutation: Message, at_ms: int) -> None:
    mutation.timestamp = at_ms
    for column in mutation.column_value:
        for cell in column.qualifier_value:
            cell.timestamp = at_ms  # if the cell had no timestamp, HBase would delete the cell's newest version


def _write_marker(row: bytes, column: Column, value: bytes, held: Mapping[Column, Cell]) -> list[Message]:
    """Build the mutations that write a marker. ``held`` contains the cells that were read, including the old marker.

    The marker must be visible whenever the row's new value is visible. If there is no visible marker, another client may
    have just deleted the row. HBase gives all appends and increments in a step the same timestamp, but a put may receive
    an earlier timestamp. The marker is therefore appended to the absent cell. If the marker is visible, a put can replace
    it, because no deletion hides a cell that is newer than a visible marker.
    """
    cell = {column: value}
    mutations = [put(row, cell) if column in held else append(row, cell)]
    if held:  # the server's clock may be behind the cells' timestamps
        mutations.append(put(row, cell, at_ms=max(one.timestamp_ms for one in held.values()) + 1))
    return mutations


def _newest_in(marker: bytes) -> int:
    newest: int = _BASE.unpack_from(marker)[0]
    return newest


def _advance(seen: bytes | None, base: int, partition: int, done: int) -> bytes | None:
    """Build the row's marker for this chunk. Return None if this chunk or a newer decision was already applied."""
    tasks: dict[int, int] = {}
    if seen is not None:
        newest = _newest_in(seen)
        if newest > base:
            return None
        if newest == base:
            tasks = dict(_TASK.iter_unpack(seen[_BASE.size :]))
    if tasks.get(partition, 0) > done:
        return None
    tasks[partition] = done + 1
    return _BASE.pack(base) + b"".join(_TASK.pack(*task) for task in sorted(tasks.items()))


def places_of(mutation: Message) -> list[Column]:
    """Return the cells that a mutation changes."""
    return [(family.family, cell.qualifier) for family in mutation.column_value for cell in family.qualifier_value]


def values_of(mutation: Message) -> list[bytes]:
    """Return the values that a mutation writes to the cells that :func:`places_of` returns."""
    return [cell.value for family in mutation.column_value for cell in family.qualifier_value]


def overflow_of(mutation: Message, held: Mapping[Column, Cell]) -> str:
    """Say why an increment cannot be added to the row's value. Return an empty string if it can be added."""
    for place, value in zip(places_of(mutation), values_of(mutation), strict=True):
        if place in held:
            try:
                add(held[place].value, value)
            except BadRecordError as error:
                return f"{b':'.join(place).decode(errors='backslashreplace')}: {error}"
    return ""


def _family(mutation: Message) -> bytes:
    family: bytes = mutation.column_value[0].family
    return family
