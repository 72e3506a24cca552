"""Prepare a batch's DataFrame for the tasks: each column that any sink uses appears once. Add a checksum column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_type

from twopc.errors import SchemaError
from twopc.integration.spark.budget import functions_of_size
from twopc.integration.spark.built_ins import functions_in
from twopc.integration.spark.offers import offers, quoted
from twopc.integration.spark.plan_partitions import PARTITION_SQL
from twopc.integration.spark.row_hash import can_be_hashed, has, hash_arguments, parts
from twopc.integration.spark.views import CHECKSUM, View
from twopc.sink import TYPE_NAME, Form, SinkColumn, require_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from twopc.integration.spark.offers import Offer
    from twopc.sink import TwoPhaseCommitSink

#: PySpark 4.2 and newer require a time zone for timestamps; earlier versions used UTC.
_ZONE: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}

#: The timestamp format in a dead letter. A cast would use the session's time zone instead. The way to write a quote in a literal
#: depends on the session's settings, so the SQL replaces each underscore with a quote, chr(39).
_JSON: Final = (
    "MAP('timeZone', 'UTC', 'timestampFormat', REPLACE('yyyy-MM-dd_T_HH:mm:ss.SSSSSSXXX', '_', CHR(39)), "
    "'timestampNTZFormat', REPLACE('yyyy-MM-dd_T_HH:mm:ss.SSSSSS', '_', CHR(39)), 'ignoreNullFields', 'false')"
)
#: The name of a batch's rows as a table.
_ALIAS: Final = "__twopc_rows"


@dataclass(frozen=True)
class TakenColumn:
    """A column that at least one sink uses.

    Attributes:
        sql: the expression for the original column.
        kind: the original column's type.
        form: the form in which the sinks take the column.
    """

    sql: str
    kind: st.DataType
    form: Form

    @property
    def in_form(self) -> str:
        """The SQL expression that converts the column to ``form``."""
        if self.form is Form.BINARY:
            return f"CAST({self.sql} AS BINARY)"
        if self.form is Form.TEXT:
            return f"TO_JSON({self.sql}, {_JSON})" if _may_hold_instants(self.kind) else f"CAST({self.sql} AS STRING)"
        return f"unix_millis({self.sql})" if self.form is Form.EPOCH_MILLIS else self.sql

    @property
    def is_spark_needed(self) -> bool:
        """Whether only Spark can convert the original column to ``form``."""
        is_text = isinstance(self.kind, (st.BinaryType, st.StringType))
        return not (self.form is Form.AS_IS or (self.form is Form.BINARY and is_text))

    @property
    def hashed(self) -> str:
        """The arguments to pass to ``xxhash64`` for this column."""
        kinds = {Form.BINARY: st.BinaryType(), Form.TEXT: st.StringType(), Form.EPOCH_MILLIS: st.LongType()}
        return ", ".join(hash_arguments(self.in_form, kinds.get(self.form, self.kind)))


@dataclass(frozen=True)
class Rows:
    """One DataFrame of a batch, and the columns that are written from it.

    Attributes:
        name: the DataFrame's name in the batch; empty if the batch has only one DataFrame.
        source: the DataFrame.
        sinks: the sinks that take the DataFrame, including the dead-letter sink.
        base: the DataFrame with the columns that the user's expressions make; see :class:`Offers`.
        columns: the columns of :meth:`frame` that come before :data:`CHECKSUM`, named ``0``, ``1``, ….
        views: maps a sink's name to the columns that the sink receives.
        is_hashed: whether rows get checksums, because a replay may have to be compared with the written rows. If False,
            every checksum is 0.
    """

    name: str
    source: DataFrame
    sinks: tuple[TwoPhaseCommitSink[Any], ...]
    base: DataFrame
    columns: tuple[TakenColumn, ...]
    views: dict[str, View]
    is_hashed: bool = True

    def for_tasks(self, most_writers: int | None) -> DataFrame:
        """Return the DataFrame for the tasks. Each task receives one or more partitions of the plan, without a shuffle."""
        frame = self.frame(PARTITION_SQL)
        return frame if most_writers is None else frame.coalesce(most_writers)

    # Call selectExpr only once, because Spark analyzes the plan again in each call, which takes a few milliseconds.
    def frame(self, *further: str) -> DataFrame:
        """Return the DataFrame with the columns that the sinks use, the checksum, and further columns."""
        # If there is a table c, `c`.`id` without the alias would mean the table's column id, not the field id of the struct c.
        has_structs = any(has(st.StructType, column.kind) for column in self.columns)
        return (self.base.alias(_ALIAS) if has_structs else self.base).selectExpr(*self._expressions, *further)

    @property
    def _expressions(self) -> list[str]:
        columns = (f"{column.in_form} AS `{index}`" for index, column in enumerate(self.columns))
        return [*columns, f"{self._checksum} AS {CHECKSUM}"]

    @property
    def functions(self) -> frozenset[str]:
        """The names of the SQL functions that compute the rows in this form, for the tasks or for the driver."""
        return frozenset().union(
            *map(functions_in, [*self._expressions, PARTITION_SQL]), functions_of_size(self.source.schema)
        )

    def for_driver(self) -> tuple[DataFrame, Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]]]:
        """Return the driver's DataFrame, and a function that converts its batches to the batches of :meth:`frame`.

        If possible, return the user's own DataFrame, because Spark would have to plan any other DataFrame. An earlier attempt
        or the user's program may have evaluated this DataFrame before.
        """
        order = self._order_of_own_columns()
        if order is None:
            return self.frame(), lambda batches: batches
        return self.source, lambda batches: [self._arranged(batch, order) for batch in batches]

    def replanned(self) -> Rows:
        """Return the same rows for a driver that makes a new plan in each attempt.

        If Spark has removed a plan's shuffle files since an earlier evaluation, it would write the same shuffle again, which
        rule 6 forbids. A new plan has its own shuffle.
        """
        return replace(self, base=self.base.select("*"))

    @property
    def is_run_unchanged(self) -> bool:
        """Whether the driver runs the user's own DataFrame."""
        return self._order_of_own_columns() is not None

    def _order_of_own_columns(self) -> list[int] | None:
        """Find the position of each column of :meth:`frame` in the source.

        Return None if Spark must compute or drop a column.
        """
        if self.is_hashed or self.base is not self.source or any(column.is_spark_needed for column in self.columns):
            return None
        own = {quoted(name): index for index, name in enumerate(self.source.columns)}
        taken = [column.sql for column in self.columns]
        if own.keys() != set(taken):
            return None
        return [own[sql] for sql in taken]

    def _arranged(self, batch: pa.RecordBatch, order: Sequence[int]) -> pa.RecordBatch:
        columns = [
            _as_bytes(batch.column(index)) if column.form is Form.BINARY else batch.column(index)
            for column, index in zip(self.columns, order, strict=True)
        ]
        names = [*map(str, range(len(columns))), CHECKSUM]
        return pa.RecordBatch.from_arrays([*columns, pa.repeat(0, batch.num_rows)], names=names)

    @property
    def _checksum(self) -> str:
        if not self.is_hashed or not self.columns:  # all rows without columns are equal
            return "0L"
        return f"xxhash64({', '.join(column.hashed for column in self.columns)})"


def arrange(
    name: str,
    frame: DataFrame,
    sinks: tuple[TwoPhaseCommitSink[Any], ...],
    *,
    select: Mapping[str, Sequence[str]],
    dead_letter: str | None = None,
) -> Rows:
    """Let every sink choose its columns. Evaluates nothing.

    Args:
        name: the DataFrame's name.
        frame: the batch, or a DataFrame that was made from it.
        sinks: the sinks that use the DataFrame.
        select: maps a sink's name to the SQL expressions that make the sink's columns. A sink without expressions chooses
            from the DataFrame's columns.
        dead_letter: the name of the sink for rows that other sinks cannot accept.

    Raises:
        SchemaError: a column is missing, exists twice, cannot be computed or has a type that a sink cannot accept. The message
            names the sink and the column.
    """
    names = [sink.name for sink in sinks]
    offered = offers(frame, {sink: expressions for sink, expressions in select.items() if sink in names})
    chosen = {
        sink.name: (_letter_of if sink.name == dead_letter else _chosen_by)(sink, offered.to(sink.name).columns)
        for sink in sinks
    }
    taken = _TakenColumns()
    # A repair compares checksums with those of the decided attempt, so sort the columns. The program may now pass its sinks and
    # columns in a different order.
    wanted = sorted(
        ((column, sink_name) for sink_name, columns in chosen.items() for column in columns),
        key=lambda one: (one[0].name, one[1]),
    )
    indexes = {(sink_name, column): taken.index_of(offered.to(sink_name), column) for column, sink_name in wanted}
    views = {
        sink_name: View(
            columns=tuple((column.name, indexes[sink_name, column]) for column in columns),
            of_bad_rows=sink_name == dead_letter,
        )
        for sink_name, columns in chosen.items()
    }
    return Rows(name, frame, sinks, offered.base, tuple(taken.columns.values()), views)


def _chosen_by(sink: TwoPhaseCommitSink[Any], columns: st.StructType) -> Sequence[SinkColumn]:
    try:
        chosen = sink.choose_columns(pa.schema(map(_arrow_field, columns.fields)))
        for column in chosen:
            require_one(column.source, columns.names)
    except SchemaError as error:
        raise SchemaError(f"sink {sink.name}: {error}") from None
    return chosen


def _letter_of(sink: TwoPhaseCommitSink[Any], columns: st.StructType) -> Sequence[SinkColumn]:
    """Choose all columns for a dead letter. A column that Spark cannot hash or convert to Arrow becomes text."""
    try:
        for name in columns.names:
            require_one(name, columns.names)
    except SchemaError as error:
        raise SchemaError(f"sink {sink.name}, for dead letters: {error}") from None
    return list(map(_of_letters, columns.fields))


def _of_letters(field: st.StructField) -> SinkColumn:
    can_be_taken = _arrow_type(field.dataType) is not None and can_be_hashed(field.dataType)
    return SinkColumn(field.name, field.name, Form.AS_IS if can_be_taken else Form.TEXT)


def _may_hold_instants(kind: st.DataType) -> bool:
    """Whether the text of a nested value may contain a timestamp. Spark shows timestamps in the session's time zone."""
    is_shown_in_a_zone = isinstance(kind, st.TimestampType) or kind.typeName() == "variant"
    return is_shown_in_a_zone or any(map(_may_hold_instants, parts(kind)))


def _arrow_field(field: st.StructField) -> pa.Field[Any]:
    # A type that PySpark cannot convert must not stop a query whose sinks do not use the column. PySpark converts a variant to a
    # struct of bytes, which a sink could take for the user's own struct.
    kind = (_arrow_type(field.dataType) if can_be_hashed(field.dataType) else None) or pa.null()
    return pa.field(field.name, kind, metadata={TYPE_NAME: field.dataType.simpleString()})


def _arrow_type(kind: st.DataType) -> pa.DataType | None:
    try:
        return to_arrow_type(kind, **_ZONE)
    except PySparkTypeError:
        return None


def _as_bytes(texts: pa.Array[Any]) -> pa.Array[Any]:
    """Convert text to UTF-8 bytes, like Spark's ``CAST(… AS BINARY)``. The bytes stay in the text's buffers."""
    if pa.types.is_string(texts.type):
        return texts.cast(pa.binary())
    return texts.cast(pa.large_binary()) if pa.types.is_large_string(texts.type) else texts


class _TakenColumns:
    """Collects the columns that the sinks use. Two sinks share a column if they use it in the same form."""

    def __init__(self) -> None:
        self.columns: dict[tuple[str, Form], TakenColumn] = {}
        self._indexes: dict[tuple[str, Form], int] = {}

    def index_of(self, offer: Offer, column: SinkColumn) -> int:
        place = offer.columns.names.index(column.source)
        key = (offer.paths[place], column.form)
        if key not in self.columns:
            self._indexes[key] = len(self.columns)
            self.columns[key] = TakenColumn(offer.paths[place], offer.columns[place].dataType, column.form)
        return self._indexes[key]
