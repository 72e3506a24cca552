"""The rows of a batch as an Iceberg table takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import sanitize_column_names

from twopc.sinks.lake.rows import RowFormat, match

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema


def fit_rows(schema: pa.Schema, table: Schema, title: str) -> RowFormat:
    """Say how a batch with these columns becomes rows of the table. In a file, the columns have other names, and field ids.

    Raises:
        SchemaError: it cannot, see :func:`match`.
    """
    target: pa.Schema = schema_to_pyarrow(table, include_field_ids=False)
    stored: pa.Schema = schema_to_pyarrow(sanitize_column_names(table), include_field_ids=True)
    return RowFormat(title, match(schema, target, title), target, stored)
