"""A batch's DataFrame as the tasks write it: every column that a sink takes, each once, and a checksum."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_type

from integration.spark.views import CHECKSUM, View
from twopc.errors import SchemaError
from twopc.sink import TYPE_NAME, Form, SinkColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from twopc.sink import TwoPhaseCommitSink

_SELECTED: Final = "__twopc_selected_"
#: PySpark 4.2 and newer ask for the zone of a timestamp; those before took UTC.
_ZONE: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}


@dataclass(frozen=True)
class Rows:
    """One DataFrame of a batch, and what its tasks are given.

    Attributes:
        name: tells it from the batch's other DataFrames; empty where there are none.
        source: the DataFrame.
        sinks: those that take it, the one for dead letters included.
        frame: columns ``0``, ``1``, … and :data:`CHECKSUM`.
        views: by sink name, which of these columns it is given.
    """

    name: str
    source: DataFrame
    sinks: tuple[TwoPhaseCommitSink[Any], ...]
    frame: DataFrame
    views: dict[str, View]


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
        name: the DataFrame's.
        frame: the batch, or a DataFrame that was made from it.
        sinks: those that take it.
        select: by sink name, the SQL expressions that make its columns; a sink without any chooses from the DataFrame's.
        dead_letter: the name of the sink that is given the rows that others cannot take.

    Raises:
        SchemaError: a column is missing or has a type that a sink cannot take; the message names sink and column.
    """
    base, parents = frame, dict.fromkeys((sink.name for sink in sinks), "")
    for number, taker in enumerate(taker for taker in select if taker in parents):
        parents[taker] = f"{_SELECTED}{number}"
        base = base.withColumn(parents[taker], sf.struct(*map(sf.expr, select[taker])))
    taken = _TakenColumns()
    views = {}
    for sink in sinks:
        parent = parents[sink.name]
        columns = cast("st.StructType", base.schema[parent].dataType) if parent else frame.schema
        is_for_letters = sink.name == dead_letter
        chosen = [SinkColumn(name, name) for name in columns.names] if is_for_letters else _chosen_by(sink, columns)
        indexes = tuple((column.name, taken.index_of(parent, column)) for column in chosen)
        views[sink.name] = View(columns=indexes, of_bad_rows=is_for_letters)
    selected = base.select(*(column.alias(str(index)) for index, column in taken.columns.values()))
    return Rows(name, frame, sinks, selected.withColumn(CHECKSUM, _checksum(selected)), views)


def _chosen_by(sink: TwoPhaseCommitSink[Any], columns: st.StructType) -> Sequence[SinkColumn]:
    try:
        return sink.choose_columns(pa.schema(map(_arrow_field, columns.fields)))
    except SchemaError as error:
        raise SchemaError(f"sink {sink.name}: {error}") from None


def _arrow_field(field: st.StructField) -> pa.Field[Any]:
    try:
        kind = to_arrow_type(field.dataType, **_ZONE)
    except PySparkTypeError:
        kind = pa.null()  # PySpark cannot convert it; that must not stop a query whose sinks do not take the column
    return pa.field(field.name, kind, field.nullable, metadata={TYPE_NAME: field.dataType.simpleString()})


class _TakenColumns:
    """The columns that some sink takes: two sinks that take the same one in the same form share it."""

    def __init__(self) -> None:
        self.columns: dict[tuple[str, str, Form], tuple[int, Column]] = {}

    def index_of(self, parent: str, column: SinkColumn) -> int:
        """The column's index; ``parent`` is the struct that holds it, "" for the batch itself."""
        key = (parent, column.source, column.form)
        if key not in self.columns:
            quoted = "`" + column.source.replace("`", "``") + "`"
            source = sf.col(f"`{parent}`.{quoted}" if parent else quoted)
            self.columns[key] = len(self.columns), _in_form(column.form, source)
        return self.columns[key][0]


def _in_form(form: Form, column: Column) -> Column:
    if form is Form.BINARY:
        return column.cast("binary")
    return sf.unix_millis(column) if form is Form.EPOCH_MILLIS else column


def _checksum(frame: DataFrame) -> Column:
    # xxhash64 skips nulls: without the flags (null, 'a') and ('a', null) would be the same row.
    parts = [part for field in frame.schema.fields for part in (sf.col(field.name).isNull(), _hashable(field))]
    return sf.xxhash64(*parts)


def _hashable(field: st.StructField) -> Column:
    column = sf.col(field.name)
    return sf.map_entries(column) if isinstance(field.dataType, st.MapType) else column
