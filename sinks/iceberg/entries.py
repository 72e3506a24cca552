"""Define a file's entry in a task's handle, with the path, size, partition and column bounds."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import msgspec
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Describes one file, with the same fields as an entry in an Iceberg manifest.

    Attributes:
        partition: the partition's values. A decimal is stored as a one-element list that contains the decimal as text, because
            the encoding does not support decimals.
        modified_ms: the Unix time at which the file was written, in milliseconds; 0 in a handle that an earlier version of the
            sink has stored.
    """

    path: str
    size: int
    rows: int
    partition: tuple[Any, ...]
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: tuple[int, ...]
    modified_ms: int = 0

    def data_file(self) -> DataFile:
        """Create the file's description for an Iceberg manifest."""
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*(_decimal(value) for value in self.partition)),
            record_count=self.rows,
            file_size_in_bytes=self.size,
            column_sizes=self.column_sizes,
            value_counts=self.value_counts,
            null_value_counts=self.null_value_counts,
            nan_value_counts=self.nan_value_counts,
            lower_bounds=self.lower_bounds,
            upper_bounds=self.upper_bounds,
            key_metadata=None,
            split_offsets=list(self.split_offsets),
            equality_ids=None,
            sort_order_id=None,
        )


def entry_of(path: str, size: int, partition: tuple[Any, ...], statistics: dict[str, Any]) -> Entry:
    """Create the entry of a file that was just written.

    Args:
        path: the file path.
        size: the file size in bytes.
        partition: the partition's values in Iceberg's stored form.
        statistics: the statistics that pyiceberg computed.
    """
    return Entry(
        path=path,
        size=size,
        rows=statistics["record_count"],
        partition=tuple([str(value)] if isinstance(value, Decimal) else value for value in partition),
        column_sizes=statistics["column_sizes"],
        value_counts=statistics["value_counts"],
        null_value_counts=statistics["null_value_counts"],
        nan_value_counts=statistics["nan_value_counts"],
        lower_bounds=statistics["lower_bounds"],
        upper_bounds=statistics["upper_bounds"],
        split_offsets=tuple(statistics["split_offsets"]),
        modified_ms=time.time_ns() // 1_000_000,
    )


def _decimal(value: Any) -> Any:
    return Decimal(value[0]) if isinstance(value, list) else value
