"""Count a task's rows for each partition of the plan. A task may have several partitions.

A batch has no more transactions than the cluster can use, so one task may write several partitions of the plan. Spark's
scheduler chooses these partitions, and a replay may group them differently (rule 9). The plan's own partitions do not
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.records import Part

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The column with the index of each row's partition in the plan. Spark computes the column below the coalesce.
PARTITION: Final = "__twopc_partition"
#: The SQL expression for the column.
PARTITION_SQL: Final = f"spark_partition_id() AS {PARTITION}"


#: Consecutive rows of an Arrow batch from one partition of the plan: the partition's index, the first row, and the
#: number of rows.
Stretch = tuple[int, int, int]


def stretches(batch: pa.RecordBatch) -> Iterator[Stretch]:
    """Split a batch into stretches. All rows of a stretch come from one partition of the plan.

    If the partition column is missing, as in the driver, all rows are from partition 0.
    """
    if batch.num_rows == 0:
        return
    if PARTITION not in batch.schema.names:
        yield 0, 0, batch.num_rows
        return
    column = batch.column(PARTITION)
    first, last = column[0].as_py(), column[-1].as_py()
    if first == last:  # the rows of a partition end before those of the next one begin
        yield first, 0, batch.num_rows
        return
    runs: Any = pc.call_function("run_end_encode", [column])
    start = 0
    for index, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield index, start, end - start
        start = end


class Counted:
    """For each partition of the plan, adds up the number of rows and the checksums."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int]] = {}

    def add(self, index: int, rows: int, checksum: int) -> None:
        """Add some rows of one partition, with their checksum."""
        rows_before, checksum_before = self._found.get(index, (0, 0))
        self._found[index] = rows_before + rows, (checksum_before + checksum) % 2**64

    @property
    def parts(self) -> tuple[Part, ...]:
        """The totals for each partition, in the plan's order."""
        return tuple(Part(index, *counted) for index, counted in sorted(self._found.items()))
