"""Convert a batch's rows for COPY: match the columns, find rows that can never be written, and convert the rows to text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError, SchemaError
from twopc.sink import TYPE_NAME, listed, require_one, type_name
from twopc.sinks.postgres.arrow_text import joined, replaced, text
from twopc.sinks.postgres.column_types import advice, array_elements, array_text, is_list, rule_for
from twopc.sinks.years import count_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from twopc.sinks.postgres.target import Column, Table

#: Arrow's strings have 32-bit offsets, and a value's text may be four times as long as the value.
_MOST_BYTES: Final = 2**26
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_NULL: Final = "\\N"
#: Spark's names for the type whose only value is null.
_VOID: Final = ("void", "null")
_SHOWN: Final = 60


@dataclass(frozen=True)
class RowFormat:
    """Converts rows to text for ``COPY table (columns) FROM STDIN``. The object is frozen and picklable.

    Attributes:
        table: the table name in error messages.
        columns: for each column to write, its name in the batch and the table's column.
        key: the table's columns that must not be null even if the table allows nulls.
    """

    table: str
    columns: tuple[tuple[str, Column], ...]
    key: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The table's columns, in the order of :meth:`copy_text`."""
        return tuple(column.name for _, column in self.columns)

    def check(self, rows: pa.RecordBatch) -> None:
        """Check that each row can be written.

        Raises:
            SchemaError: a column is missing, or has a type that the table does not accept.
            BadRecordError: a row can never be written. The message identifies the first such row, the column and the value.
        """
        problems = self.bad_rows(rows)
        if problems:
            row = min(problems)
            raise BadRecordError(f"{problems[row]}, in row {row} of an Arrow batch of {rows.num_rows} rows")

    def bad_rows(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Find the rows that can never be written. Return the reasons by row number.

        Raises:
            SchemaError: see :meth:`check`.
        """
        found: dict[int, str] = {}
        for source, column in self.columns:
            for row, reason in self._problems(_taken(rows, source), source, column):
                found.setdefault(row, reason)
        return found

    def copy_text(self, rows: pa.RecordBatch) -> Iterator[memoryview]:
        """Yield the rows' text in pieces. Call :meth:`check` first, because PostgreSQL does not reject every bad row.

        Raises:
            SchemaError: see :meth:`check`.
        """
        if rows.num_rows > 1 and rows.nbytes > _MOST_BYTES:
            middle = rows.num_rows // 2
            yield from self.copy_text(rows.slice(0, middle))
            yield from self.copy_text(rows.slice(middle))
        elif rows.num_rows:
            yield _contents(joined(self._lines(rows), text("\n")))

    def _lines(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        fields = [self._field(_taken(rows, source), source, column) for source, column in self.columns]
        return joined(*fields, separator="\t")

    def _field(self, values: Any, source: str, column: Column) -> pa.Array[Any]:
        if pa.types.is_null(values.type):
            return pc.coalesce(values.cast(pa.string()), text(_NULL))
        rule = rule_for(values.type, column.type)
        if rule is None:
            raise _misfit(self.table, source, str(values.type), column)
        if is_list(values.type):
            written = array_text(values, rule.write(array_elements(values), column.type))
        else:
            written = rule.write(values, column.type)
        # Numbers and times do not contain any characters to escape.
        if not _is_tame(values.type):
            written = replaced(written, _ESCAPES)
        return pc.coalesce(written, text(_NULL)) if written.null_count else written

    def _problems(self, values: Any, source: str, column: Column) -> Iterator[tuple[int, str]]:
        if values.null_count and not (column.is_nullable and column.name not in self.key):
            why = "is part of the key" if column.is_nullable else "is NOT NULL"
            advised = f"column {source!r} is null, but {self.table}.{column.name} {why}: replace the null (coalesce)"
            yield from ((row, advised) for row in _true_rows(values.is_null()))
        if pa.types.is_null(values.type):
            return
        rule = rule_for(values.type, column.type)
        if rule is None:
            raise _misfit(self.table, source, str(values.type), column)
        flat = values.flatten() if is_list(values.type) else values
        for check in rule.checks:
            for problem in check(flat, column.type):
                parents = pc.list_parent_indices(values).to_pylist() if is_list(values.type) else range(len(values))
                for at in _true_rows(problem.mask):
                    yield parents[at], f"column {source!r} contains {problem.reason}: {_shown(flat, at)}"
                # The other checks may fail on these values.
                flat = pc.if_else(problem.mask, pa.nulls(len(flat), flat.type), flat)


def fit_rows(schema: pa.Schema, table: Table, *, key: Collection[str] = ()) -> RowFormat:
    """Match a batch's columns with the table's columns by name. Case matters only if the table has names that differ in case.

    Args:
        schema: the batch's columns.
        table: the table.
        key: the table's columns that must not be null.

    Raises:
        SchemaError: a column has no counterpart, is computed by the table, or has a type that the table does not accept, or a
            required column is missing from the batch. The message identifies the column and its types in the batch and the
            table, and says what to do.
    """
    found: dict[str, tuple[str, Column]] = {}
    for name in schema.names:
        require_one(name, schema.names)
        column = _counterpart(name, table)
        if column.name in found:
            raise SchemaError(
                f"the columns {found[column.name][0]!r} and {name!r} both match {table.title}.{column.name}. Nothing was "
                "written. Drop one of these columns"
            )
        if column.generated in {"ALWAYS", "EXPRESSION"}:
            raise SchemaError(
                f"column {name!r}: {table.title}.{column.name} is GENERATED ALWAYS, so the table itself computes the value. "
                "Nothing was written. Drop the column"
            )
        found[column.name] = (name, column)
    missing = [column.name for column in table.columns if column.name not in found and not column.may_be_omitted]
    if missing:
        raise SchemaError(
            f"the DataFrame has no column {listed(missing)} (it has {listed(schema.names)}), but in {table.title} this "
            "column is NOT NULL and has no default. Nothing was written. Include this column in the DataFrame"
        )
    lacking = [name for name in key if name not in found]
    if lacking:
        raise SchemaError(
            f"the DataFrame has no column {listed(lacking)} (it has {listed(schema.names)}), which is part of the key. Nothing "
            "was written. Include this column in the DataFrame"
        )
    for source, column in found.values():
        field = schema.field(source)
        if pa.types.is_null(field.type):
            # If Arrow does not support a type, an engine passes the type as null, with the engine's name for it in the metadata.
            if field.metadata and field.metadata.get(TYPE_NAME, b"void").decode() not in _VOID:
                raise _misfit(table.title, source, type_name(field), column)
        elif rule_for(_decoded(field.type), column.type) is None:
            raise _misfit(table.title, source, type_name(field), column)
    return RowFormat(table.title, tuple(found.values()), frozenset(key))


def _misfit(table: str, source: str, kind: str, column: Column) -> SchemaError:
    return SchemaError(
        f"column {source!r} is {kind}, but {table}.{column.name} is {column.type.sql}. Nothing was written. "
        f"{advice(column.type)}"
    )


def _counterpart(name: str, table: Table) -> Column:
    names = [column.name for column in table.columns]
    meant = [name] if name in names else [other for other in names if other.lower() == name.lower()]
    if len(meant) == 1:
        return table.column(meant[0])
    if meant:
        raise SchemaError(
            f"column {name!r} matches more than one column of {table.title}: {listed(meant)}. Nothing was written. Rename "
            "the column"
        )
    raise SchemaError(
        f"column {name!r} is not in {table.title} (it has {listed(names)}). Nothing was written. Drop or rename the column, or "
        "add it to the table"
    )


def _decoded(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _taken(rows: pa.RecordBatch, name: str) -> Any:
    require_one(name, rows.schema.names)
    column: Any = rows.column(name)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_tame(kind: Any) -> bool:
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)
    return any(test(kind) for test in tests)


def _contents(lines: Any) -> memoryview:
    """Return the bytes of all strings in an array, one after another, without copying them."""
    _, offsets, data = lines.buffers()
    ends: Sequence[int] = memoryview(offsets).cast("i")
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def _true_rows(mask: Any) -> list[int]:
    return [row for row, is_true in enumerate(mask.to_pylist()) if is_true]


def _shown(values: Any, at: int) -> str:
    try:
        value = repr(values[at].as_py())
    except UnicodeDecodeError:
        value = repr(values.cast(pa.binary())[at].as_py())
    except (ValueError, OverflowError):  # Python does not support this date
        value = count_text(values, at)
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
