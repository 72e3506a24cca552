"""Check, before the decision, that HBase will accept the results of increments and appends.

A task checks each chunk against the cells, and stores two numbers with the chunk. For almost every batch, these numbers
are enough to prove that all tasks' chunks can be applied. Otherwise, the driver adds up the values of all rows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.errors import BadRecordError
from twopc.sinks.hbase import staging
from twopc.sinks.hbase.apply import places_of, values_of
from twopc.sinks.hbase.mappings import COUNTER, INT64, MARKED, number_in
from twopc.sinks.hbase.row_ops import cell_size, cells_of, look
from twopc.sinks.staged.client import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.sinks.hbase.client import HBaseClient
    from twopc.sinks.hbase.row_ops import Column
    from twopc.sinks.hbase.settings import HBaseSettings
    from twopc.sinks.hbase.staging import HBaseHandle

_MAX: Final = 2**63 - 1
_LENGTH: Final = struct.Struct(">I")
_LOOK_ROWS: Final = 1_000

Change = tuple[int, int]
"""How far a cell's value can fall and rise, in any order of the rows. An append can only increase the number of bytes."""


class Reach(NamedTuple):
    """The two numbers that are stored with a chunk.

    Attributes:
        farthest: the largest absolute value that a counter may reach with this chunk, or the largest size that a cell may
            reach, in bytes.
        moved: the largest change that the chunk makes to any cell.
    """

    farthest: int = 0
    moved: int = 0


class Check:
    """Checks one sink's increments and appends."""

    def __init__(self, client: HBaseClient, settings: HBaseSettings) -> None:
        self._client = client
        self._sink = settings.name
        self._table = settings.table
        self._staging_table = settings.staging_table
        self._operation = settings.mapping.operation
        self._places = settings.mapping.places
        self._max_bytes = settings.max_cell_bytes

    def reach(self, rows: Mapping[bytes, Sequence[bytes]]) -> Reach:
        """Check a single chunk. ``rows`` contains, for each row key, one value per cell.

        Raises:
            BadRecordError: a cell is not a counter, or would become too large.
        """
        if self._operation not in MARKED:
            return Reach()
        return self._require_fits(
            {
                (row, place): self._change(value)
                for row, values in rows.items()
                for place, value in zip(self._places, values, strict=True)
            }
        )

    def require_together(self, handles: Sequence[HBaseHandle], noted: Sequence[Reach]) -> None:
        """Check all chunks of a batch together.

        Raises:
            BadRecordError: a cell is not a counter, or would become too large.
        """
        limit = self._max_bytes if self._operation == "APPEND" else _MAX
        if not noted or max(one.farthest for one in noted) + sum(one.moved for one in noted) <= limit:
            return
        total: dict[tuple[bytes, Column], Change] = {}
        for handle in handles:
            for number in range(handle.chunks):
                read = staging.look_at_chunk(self._staging_table, handle.row(self._sink), number)
                for cell in cells_of(self._client.execute_one(read)).values():
                    for action in staging.unpack(cell.value).action:
                        mutation = action.mutation
                        for place, value in zip(places_of(mutation), values_of(mutation), strict=True):
                            fall, rise = self._change(value)
                            older = total.get((mutation.row, place), (0, 0))
                            total[mutation.row, place] = older[0] + fall, older[1] + rise
        self._require_fits(total)

    def _change(self, value: bytes) -> Change:
        if self._operation == "APPEND":
            return 0, len(value)
        by: int = COUNTER.unpack(value)[0]
        return min(by, 0), max(by, 0)

    def _require_fits(self, changes: Mapping[tuple[bytes, Column], Change]) -> Reach:
        rows = list(dict.fromkeys(row for row, _ in changes))
        sizes_only = self._operation == "APPEND"
        found: dict[tuple[bytes, Column], bytes] = {}
        for start in range(0, len(rows), _LOOK_ROWS):
            part = rows[start : start + _LOOK_ROWS]
            looks = [look(self._table, row, self._places, sizes_only=sizes_only) for row in part]
            for row, answer in zip(part, checked(self._client.execute(looks)), strict=True):
                found |= {(row, place): cell.value for place, cell in cells_of(answer).items()}
        farthest = moved = 0
        fits = self._size if sizes_only else self._value
        for (row, place), change in changes.items():
            try:
                farthest = max(farthest, fits(row, place, found.get((row, place)), change))
            except BadRecordError as error:
                where = f"row {row[:100]!r}, {b':'.join(place).decode()}"
                raise BadRecordError(
                    f"sink {self._sink!r}: {where}: {error}. No part of this attempt was applied"
                ) from None
            moved = max(moved, -change[0], change[1])
        return Reach(min(farthest, _MAX), min(moved, _MAX))

    def _size(self, row: bytes, place: Column, held: bytes | None, change: Change) -> int:
        before: int = _LENGTH.unpack(held)[0] if held else 0
        size = cell_size(row, place, before + change[1])
        if size > self._max_bytes:
            raise BadRecordError(
                f"the cell would grow to {size} bytes, but HBase accepts at most {self._max_bytes}. Append to another row or "
                "cell, or raise hbase.server.keyvalue.maxsize and HBaseSink(max_cell_bytes=…)"
            )
        return size

    def _value(self, row: bytes, place: Column, held: bytes | None, change: Change) -> int:
        del row, place
        before: int = 0 if held is None else number_in(held)
        for total in (before + by for by in change):
            if total not in INT64:
                raise BadRecordError(f"the sum {total} would not fit in 64 bits")
        return max(abs(before + by) for by in (0, *change))


def noted_in(answers: Sequence[Any]) -> list[Reach]:
    """Read the numbers that tasks stored with their chunks. ``answers`` contains the slices' state cells."""
    return [
        Reach(*staging.REACH.unpack(cell.value))
        for answer in answers
        for (_, qualifier), cell in cells_of(answer).items()
        if qualifier.startswith(staging.REACH_OF_CHUNK)
    ]
