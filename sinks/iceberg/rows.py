"""Match a batch's columns with an Iceberg table's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import sanitize_column_names

from twopc.sinks.lake.rows import RowFormat, match

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema


def fit_rows(schema: pa.Schema, table: Schema, title: str) -> RowFormat:
    """Determine how to convert a batch to rows of the table. Data files have field ids and sanitized column names.

    Raises:
        SchemaError: the columns do not fit the table; see :func:`match`.
    """
    target: pa.Schema = schema_to_pyarrow(table, include_field_ids=False)
    stored: pa.Schema = schema_to_pyarrow(sanitize_column_names(table), include_field_ids=True)
    return RowFormat(title, match(schema, target, title), target, stored)
