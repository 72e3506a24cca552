"""Applying what is decided, row by row, each once. Every call here may be made any number of times, by anybody.

What keeps a row from being applied twice is in the row, and is changed in the same atomic step as the data:

* ``Put``: the cells' timestamp, which is the decision's version plus the task's partition: to write them again changes
  nothing, and a later one stays. Only where a slice has a key in two chunks their order counts: then the last chunk goes
  first, and a row is written where no cell has the timestamp, so that the last row of a key wins however often this is begun.
* ``Delete``: the deletion's timestamp, which is the decision's version: nothing newer goes, however late it is repeated.
* ``Increment``, ``Append``: a marker cell ``twopc:<sink>``: the newest decision that changed the row, and for each of its
  tasks up to which chunk. A newer decision replaces it, so that a row has one marker, however many batches there were.
"""

from __future__ import annotations

import contextlib
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from sinks.hbase import staging
from sinks.hbase.row_ops import Op, cells_of, look, put, where_equal, where_none_since

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sinks.hbase.client import HBaseLink
    from sinks.hbase.fence import Fence
    from sinks.hbase.messages import Message
    from sinks.hbase.row_ops import Column
    from sinks.hbase.writer import HBaseHandle

#: The operations that would do their work again, but for a marker.
MARKED: Final = frozenset({"INCREMENT", "APPEND"})
_BASE: Final = struct.Struct(">Q")
_TASK: Final = struct.Struct(">II")
_SHOWN: Final = 3
#: Chunks that are under way together, where their order is of no interest.
_AT_ONCE: Final = 4


class Applier:
    """Applies the slices of one sink.

    Args:
        link: the way to HBase.
        fence: of the sink.
        table: the sink's own.
        sink: its name.
    """

    def __init__(self, link: HBaseLink, fence: Fence, *, table: str, sink: str) -> None:
        self._link = link
        self._fence = fence
        self._table = table
        self._sink = sink

    def apply(self, handle: HBaseHandle, base: int) -> list[str]:
        """Apply a slice from where it stands.

        Args:
            handle: the slice.
            base: its decision's version.

        Returns:
            what stands in the way, in words for people; empty where nothing does.

        Raises:
            Exception: one of ``hbase_errors.FAILURES``: how far it is cannot be found out or noted now.
        """
        self._fence.begin(handle.uuid, base)
        progress = self._fence.read()
        if progress.base != base or handle.uuid not in progress.done:
            return []  # overtaken, or given up: the evidence says which
        todo = range(progress.done[handle.uuid], handle.chunks)
        with contextlib.closing(self._apply_chunks(handle, base, todo)) as chunks:
            for done, failed in chunks:
                if failed is None:
                    return []  # gone: the evidence says so
                if failed:
                    return failed
                self._fence.note(handle.uuid, base, done + 1)
        return []

    def _apply_chunks(
        self, handle: HBaseHandle, base: int, todo: Sequence[int]
    ) -> Generator[tuple[int, list[str] | None]]:
        """What becomes of each chunk, in their order. Closed, it begins no further ones, and waits for those it has begun."""
        if not handle.distinct:  # a row may be in the next chunk, too: that waits until this one has been noted
            yield from ((done, self.apply_chunk(handle, base, done)) for done in todo)
            return
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="twopc-hbase")
        try:
            yield from zip(todo, pool.map(lambda done: self.apply_chunk(handle, base, done), todo), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def apply_chunk(self, handle: HBaseHandle, base: int, done: int) -> list[str] | None:
        """Apply the chunk before which ``done`` others were applied.

        Returns:
            what stands in the way; None where the chunk is not there.
        """
        number = handle.chunks - 1 - done if handle.operation == "PUT" else done
        [answer] = self._link.ask([staging.look_at_chunk(self._table, handle.row(self._sink), number)])
        if isinstance(answer, Exception):
            return [f"chunk {number}: {answer}"]
        cells = cells_of(answer)
        if not cells:
            return None
        mutations = staging.unpack(next(iter(cells.values())).value)
        if handle.operation in MARKED:
            return self._apply_marked(handle, base, done, mutations)
        make = _delete_op if handle.operation == "DELETE" else _put_op
        return _failures(self._link.ask([make(handle, base, one) for one in mutations]), mutations)

    def _apply_marked(self, handle: HBaseHandle, base: int, done: int, mutations: Sequence[Message]) -> list[str]:
        """Apply mutations of different rows, each together with its row's marker."""
        left = list(mutations)
        column = (_family(left[0]), marker_qualifier(self._sink))
        while left:
            looked = self._link.ask([look(handle.table, mutation.row, [column]) for mutation in left])
            if failed := _failures(looked, left):
                return failed
            todo: list[tuple[Message, Op]] = []
            for mutation, result in zip(left, looked, strict=True):
                cell = cells_of(result).get(column)
                seen = None if cell is None else cell.value
                new = _advance(seen, base, handle.partition, done)
                if new is not None:
                    both = mutation, put(mutation.row, {column: new}, at_ms=base)
                    condition = where_equal(mutation.row, column, seen)
                    todo.append((mutation, Op(handle.table, mutation.row, mutations=both, condition=condition)))
            answers = self._link.ask([op for _, op in todo])
            left = [mutation for mutation, _ in todo]
            if failed := _failures(answers, left):
                return failed
            # Somebody else was faster, perhaps this very call before its answer was lost: the marker tells.
            left = [mutation for mutation, answer in zip(left, answers, strict=True) if not answer]
        return []


def marker_qualifier(sink: str) -> bytes:
    """The marker's qualifier, in the family of the mapping's first cell."""
    return f"twopc:{sink}".encode()


def _put_op(handle: HBaseHandle, base: int, mutation: Message) -> Op:
    at_ms = base + handle.partition
    mutation.timestamp = at_ms
    if handle.distinct:  # without a condition HBase takes many rows in one step, some seven times as fast
        return Op(handle.table, mutation.row, mutations=(mutation,))
    first: Column = (_family(mutation), mutation.column_value[0].qualifier_value[0].qualifier)
    condition = where_none_since(mutation.row, first, at_ms)
    return Op(handle.table, mutation.row, mutations=(mutation,), condition=condition)


def _delete_op(handle: HBaseHandle, base: int, mutation: Message) -> Op:
    mutation.timestamp = base
    for column in mutation.column_value:
        for cell in column.qualifier_value:
            cell.timestamp = base  # a cell without one of its own would be deleted as it is now
    return Op(handle.table, mutation.row, mutations=(mutation,))


def _advance(seen: bytes | None, base: int, partition: int, done: int) -> bytes | None:
    """The marker behind this chunk; None where it was applied, or a newer decision was."""
    tasks: dict[int, int] = {}
    if seen is not None:
        [newest] = _BASE.unpack_from(seen)
        if newest > base:
            return None
        if newest == base:
            tasks = dict(_TASK.iter_unpack(seen[_BASE.size :]))
    if tasks.get(partition, 0) > done:
        return None
    tasks[partition] = done + 1
    return _BASE.pack(base) + b"".join(_TASK.pack(*task) for task in sorted(tasks.items()))


def _family(mutation: Message) -> bytes:
    family: bytes = mutation.column_value[0].family
    return family


def _failures(answers: Sequence[Any], mutations: Sequence[Message]) -> list[str]:
    failed = [
        f"row {mutation.row!r}: {answer}"
        for mutation, answer in zip(mutations, answers, strict=True)
        if isinstance(answer, Exception)
    ]
    more = [f"and {len(failed) - _SHOWN} more rows"] if len(failed) > _SHOWN else []
    return [*failed[:_SHOWN], *more]
