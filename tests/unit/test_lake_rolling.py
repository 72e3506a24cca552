"""A task's files: their number, and the memory of the rows that wait."""

from __future__ import annotations

import multiprocessing
import random
import resource
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from twopc.sinks.lake.partitions import grouped
from twopc.sinks.lake.rolling import Limits, RollingFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

_COLUMNS = 10
_MIB = 2**20


class Files:
    """A table's files, which are all alike. Each entry is the file's partition and its rows.

    They are partitioned by the first column.
    """

    file_size = 512 * _MIB

    def split(self, rows: pa.Table) -> Iterable[tuple[Any, Any]]:
        encoded = rows.column(0).combine_chunks().dictionary_encode()
        return grouped(rows.num_rows, [(encoded.indices, encoded.dictionary.to_pylist())])

    def create(self, path: str) -> File:
        return File(path)

    def size_of(self, path: str) -> int:
        del path
        return 1


class File:
    """One of these."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._rows: list[tuple[int, int]] = []

    def write(self, rows: pa.Table) -> None:
        parts: list[Any] = rows.column(0).to_pylist()
        numbers: list[Any] = rows.column(1).to_pylist()
        self._rows += zip(parts, numbers, strict=True)

    def close(self) -> None:
        pass

    def entry(self, size: int, partition: Any) -> tuple[Any, list[tuple[int, int]]]:
        del size
        return partition, self._rows


class Unkept(File):
    """A file that forgets its rows."""

    def write(self, rows: pa.Table) -> None:
        del rows


class Unread(Files):
    """Files whose rows no one will read."""

    def create(self, path: str) -> File:
        return Unkept(path)


def rolling(limits: Limits | None = None, made: type[Files] = Files) -> RollingFiles[Any]:
    files: Any = made()
    return RollingFiles(files, files, "directory", "transaction", limits)


def rows_of(partitions: list[int], first: int = 0) -> pa.Table:
    numbers = range(first, first + len(partitions))
    return pa.table({"part": partitions, **{f"c{n}": pa.array(numbers, pa.int64()) for n in range(1, _COLUMNS)}})


def test_every_row_is_in_a_file_of_its_partition_and_in_order() -> None:
    chosen = random.Random(1)
    files = rolling(Limits(waiting=20_000, open=3))
    parts = [[chosen.randrange(20) for _ in range(200)] for _ in range(30)]
    for batch, some in enumerate(parts):
        files.write(rows_of(some, 200 * batch))
    entries = files.finish()
    for partition, rows in entries:
        assert {part for part, _ in rows} == set(partition)
        assert [number for _, number in rows] == sorted(number for _, number in rows)
    expected = [(part, number) for number, part in enumerate(chain(*parts))]
    assert sorted(row for _, rows in entries for row in rows) == sorted(expected)


def test_rows_of_a_small_partition_are_held_in_memory_while_a_large_one_is_written() -> None:
    files = rolling(Limits(waiting=100_000, open=4))
    for batch in range(50):
        files.write(rows_of([0] * 1_000 + [1 + batch % 20], 10_000 * batch))
    found = Counter(partition for partition, _ in files.finish())
    assert found == {(part,): 1 for part in range(21)}


def _added_mib(rows: int, partitions: int) -> float:
    """What a task's rows add to the peak of this process's memory, until it votes."""
    chosen = random.Random(1)
    batches = [rows_of([chosen.randrange(partitions) for _ in range(10_000)]) for _ in range(10)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = rolling(made=Unread)
    for number in range(rows // 10_000):
        files.write(batches[number % 10])
    files.finish()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


@pytest.mark.parametrize("rows", [100_000, pytest.param(1_000_000, marks=pytest.mark.whole)])
def test_rows_in_very_many_partitions_need_little_memory(rows: int) -> None:
    """Ten thousand partitions: the limit is 64 MiB, plus a copy of these rows while they are split."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_added_mib, (rows, 10_000)) < 250
