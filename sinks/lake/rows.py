"""Match a batch's columns with the table's columns, and find the rows that can never be written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twopc.errors import BadRecordError, SchemaError
from twopc.sink import TYPE_NAME, listed, require_one, type_name
from twopc.sinks.lake.nulls import nulls
from twopc.sinks.lake.values import MisfitError, check_type, convert, problems

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Spark's names for the type whose only value is null.
_VOID = ("void", "null")


@dataclass(frozen=True)
class RowFormat:
    """Turns a batch into rows of the table.

    Attributes:
        table: the table name in error messages.
        sources: for each of the table's columns, the batch's column; None if it is missing from the batch.
        target: the table's columns.
        stored: the same columns, with the names that they have in a data file.
    """

    table: str
    sources: tuple[str | None, ...]
    target: pa.Schema
    stored: pa.Schema

    def check(self, rows: pa.RecordBatch) -> None:
        """Check that the table accepts each row.

        Raises:
            SchemaError: a column is missing, or has a type that the table does not accept.
            BadRecordError: a row can never be written. The message identifies the first such row, the column and the value.
        """
        found: dict[int, str] = {}
        for source, field in zip(self.sources, self.target, strict=True):
            if source is not None:
                for row, reason in self.problems(_column(rows, source, field, self.table), field, source):
                    found.setdefault(row, reason)
        if found:
            row = min(found)
            raise BadRecordError(f"{found[row]}, in row {row} of an Arrow batch of {rows.num_rows} rows")

    def convert(self, rows: pa.RecordBatch) -> pa.Table:
        """Convert rows to the table's columns and types."""
        columns = [
            nulls(rows.num_rows, stored.type)
            if source is None
            else convert(_column(rows, source, field, self.table), field.type, stored.type)
            for source, field, stored in zip(self.sources, self.target, self.stored, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.stored)

    def problems(self, column: Any, field: pa.Field[Any], source: str) -> Iterator[tuple[int, str]]:
        """In a column, find the values that the table can never store. Yield each value's row number and the reason."""
        return problems(column, field, source)


def match(schema: pa.Schema, target: pa.Schema, title: str) -> tuple[str | None, ...]:
    """Match a batch's columns with the table's columns by name, ignoring case.

    Returns:
        for each of the table's columns, the batch's column; None if it is missing from the batch.

    Raises:
        SchemaError: a column has no counterpart, or has a type that the table does not accept, or a required column is
            missing from the batch. The message identifies the column and both types, and says what to do.
    """
    found: dict[str, str] = {}
    for name in schema.names:
        require_one(name, schema.names)
        column = next((other for other in target.names if other.lower() == name.lower()), None)
        if column is None:
            raise SchemaError(
                f"column {name!r} is not in {title} (it has {listed(target.names)}). Nothing was written. Drop or rename the "
                "column, or add it to the table"
            )
        if column in found:
            raise SchemaError(
                f"the columns {found[column]!r} and {name!r} both match {title}.{column}. Nothing was written. Drop one "
                "of these columns"
            )
        _check(schema.field(name), target.field(column), title)
        found[column] = name
    missing = [field.name for field in target if field.name not in found and not field.nullable]
    if missing:
        raise SchemaError(
            f"the DataFrame has no column {listed(missing)} (it has {listed(schema.names)}), but {title} requires it. Nothing "
            "was written. Include this column in the DataFrame"
        )
    return tuple(found.get(name) for name in target.names)


def _check(field: pa.Field[Any], target: pa.Field[Any], title: str) -> None:
    # If Arrow does not support a type, an engine passes null as the type, and adds its own name for it as metadata.
    own = (field.metadata or {}).get(TYPE_NAME, b"void").decode()
    if pa.types.is_null(field.type) and own not in _VOID:
        raise _misfit(field.name, own, title, target.name, str(target.type))
    try:
        check_type(field.type, target.type, field.name)
    except MisfitError as misfit:
        is_whole = misfit.path == field.name
        found = type_name(field) if is_whole else misfit.found
        inner = misfit.path.partition(".")[2]
        where = target.name if is_whole else f"{target.name}.{inner}"
        raise _misfit(misfit.path, found, title, where, misfit.wanted) from misfit


def _misfit(path: str, found: str, title: str, column: str, wanted: str) -> SchemaError:
    if not wanted:
        return SchemaError(
            f"column {path!r} is not in {title}. Nothing was written. Drop this field from the struct, or add it to the "
            "table"
        )
    return SchemaError(
        f"column {path!r} is {found}, but {title}.{column} is {wanted}. Nothing was written. Cast the column, or change the table"
    )


def _column(rows: pa.RecordBatch, source: str, field: pa.Field[Any], title: str) -> Any:
    require_one(source, rows.schema.names)
    _check(rows.schema.field(source).remove_metadata(), field, title)
    return rows.column(source)
