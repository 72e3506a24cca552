"""Rows are counted by the plan's partition, however many of them a task has."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twopc.integration.spark.plan_partitions import PARTITION, Counted, stretches
from twopc.records import Part


def batch_of(indices: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"0": pa.array(range(len(indices)), pa.int64()), PARTITION: pa.array(indices, pa.int32())})


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([], []),
        ([7], [(7, 0, 1)]),
        ([7, 7, 7], [(7, 0, 3)]),
        ([3, 3, 0, 9, 9], [(3, 0, 2), (0, 2, 1), (9, 3, 2)]),
    ],
)
def test_a_batch_is_divided_where_the_partition_changes(
    indices: list[int], expected: list[tuple[int, int, int]]
) -> None:
    assert list(stretches(batch_of(indices))) == expected


def test_without_the_column_all_rows_are_from_one_partition() -> None:
    """The driver collects all rows of a DataFrame."""
    assert list(stretches(pa.record_batch({"0": pa.array([1, 2])}))) == [(0, 0, 2)]


@given(
    lengths=st.lists(st.integers(0, 5), max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_no_row_is_counted_twice_or_left_out_no_matter_where_arrow_cuts_its_batches(
    lengths: list[int], cuts: list[int]
) -> None:
    indices = [index for index, length in enumerate(lengths) for _ in range(length)]
    rows = batch_of(indices)
    places = sorted({0, len(indices), *(cut for cut in cuts if cut < len(indices))})
    counted = Counted()
    for start, end in pairwise(places):
        piece = rows.slice(start, end - start)
        for index, first, count in stretches(piece):
            counted.add(index, count, int(pc.sum(piece.column("0").slice(first, count)).as_py() or 0))
    expected = [
        Part(index, length, sum(row for row, at in enumerate(indices) if at == index))
        for index, length in enumerate(lengths)
        if length
    ]
    assert list(counted.parts) == expected
