"""Group rows by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: A partition's values in the table format's stored form, one for each partition field.
Partition = tuple[Any, ...]
#: A partition, and the numbers of the rows in it.
Group = tuple[Partition, "pa.Array[Any]"]


def grouped(count: int, columns: Sequence[tuple[Any, Sequence[Any]]]) -> Iterator[Group]:
    """Group rows by partition.

    Args:
        count: the number of rows.
        columns: for each partition field, a list of values, and each row's index in that list. Grouping by integers works for
            fields of any type.
    """
    names = [f"f{index}" for index in range(len(columns))]
    every_row = pa.array(range(count), pa.int64())
    keyed = pa.table([*(codes for codes, _ in columns), every_row], names=[*names, "row"])
    groups = keyed.group_by(names, use_threads=False).aggregate([("row", "list")])
    for group, codes in enumerate(groups.select(names).to_pylist()):
        partition = tuple(values[codes[name]] for name, (_, values) in zip(names, columns, strict=True))
        taken: Any = groups.column("row_list")[group]
        yield partition, taken.values


def undivided(count: int) -> Group:
    """Return the only group of an unpartitioned table. It contains all rows, so no caller reads the row numbers."""
    return (), pa.nulls(count)
