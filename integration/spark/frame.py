"""A batch's DataFrame as the tasks write it: the columns of every sink, each of them once, and a checksum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from integration.spark.kafka_rows import kafka_columns
from integration.spark.views import CHECKSUM, View
from sinks.kafka import KafkaSink
from twopc.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from twopc.sink import TwoPhaseCommitSink

_SELECTED: Final = "__twopc_selected_"


@dataclass(frozen=True)
class Rows:
    """What the tasks are given.

    Attributes:
        frame: columns ``0``, ``1``, … and :data:`CHECKSUM`.
        views: for each sink which of them it is given.
    """

    frame: DataFrame
    views: dict[str, View]


def arrange(
    frame: DataFrame,
    sinks: Sequence[TwoPhaseCommitSink[Any]],
    *,
    select: Mapping[str, Sequence[str]],
    dead_letter: str | None = None,
) -> Rows:
    """Find and check every sink's columns. Nothing is evaluated.

    Args:
        frame: the batch.
        sinks: all of them.
        select: for a sink's name, SQL expressions that make its columns; the batch's own where it is not in it.
        dead_letter: the sink that is given the rows that others cannot take.

    Raises:
        SchemaError: a column is missing or has a type that a sink cannot take; the message names it.
    """
    base = frame
    parents: dict[str, str] = {}
    for name, expressions in select.items():
        parents[name] = f"{_SELECTED}{len(parents)}"
        base = base.withColumn(parents[name], sf.struct(*map(sf.expr, expressions)))
    shelf = _Shelf()
    views = {}
    for sink in sinks:
        parent = parents.get(sink.name, "")
        columns = _struct(base.schema[parent]) if parent else frame.schema
        if sink.name == dead_letter:
            views[sink.name] = View(columns=_placed(shelf, "", frame.schema), of_bad_rows=True)
        elif isinstance(sink, KafkaSink):
            views[sink.name] = View(
                columns=tuple(
                    (name, shelf.place(parent, field, kafka=name)) for name, field in kafka_columns(sink, columns)
                )
            )
        else:
            views[sink.name] = View(columns=_placed(shelf, parent, _taken(sink, columns)))
    selected = base.select(*(column.alias(str(place)) for place, column in enumerate(shelf.columns.values())))
    return Rows(selected.withColumn(CHECKSUM, _checksum(selected)), views)


class _Shelf:
    """Columns, each of them once."""

    def __init__(self) -> None:
        self.columns: dict[tuple[str, str, str], Column] = {}

    def place(self, parent: str, field: st.StructField, *, kafka: str = "") -> int:
        """Where a column is; ``kafka`` is the field of a record that it is to be."""
        quoted = "`" + field.name.replace("`", "``") + "`"
        column = sf.col(f"`{parent}`.{quoted}" if parent else quoted)
        conversion = ""
        if kafka in {"key", "value"} and not isinstance(field.dataType, st.BinaryType):
            column, conversion = column.cast("binary"), "binary"
        elif kafka == "timestamp":
            column, conversion = sf.unix_millis(column), "millis"
        key = (parent, field.name, conversion)
        self.columns.setdefault(key, column)
        return list(self.columns).index(key)


def _placed(shelf: _Shelf, parent: str, columns: st.StructType) -> tuple[tuple[str, int], ...]:
    return tuple((field.name, shelf.place(parent, field)) for field in columns.fields)


def _taken(sink: TwoPhaseCommitSink[Any], columns: st.StructType) -> st.StructType:
    """The columns that the sink takes, in the batch's order: checked as the sink itself checks rows."""
    wanted = sink.columns
    names = columns.names if wanted is None else wanted
    missing = sorted(set(names) - set(columns.names))
    if missing:
        has = ", ".join(repr(name) for name in columns.names) or "none"
        raise SchemaError(
            f"the DataFrame has no column {missing[0]!r} (it has {has}), which sink {sink.name} needs: select it"
        )
    taken = st.StructType([field for field in columns.fields if field.name in names])
    schema = to_arrow_schema(taken)
    try:
        sink.check(pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema))
    except SchemaError as error:
        raise SchemaError(f"sink {sink.name}: {error}") from None
    return taken


def _struct(field: st.StructField) -> st.StructType:
    if not isinstance(field.dataType, st.StructType):
        raise AssertionError("made by struct()")
    return field.dataType


def _checksum(frame: DataFrame) -> Column:
    # xxhash64 passes over nulls: without the flags (null, 'a') and ('a', null) would be the same row.
    parts = [part for field in frame.schema.fields for part in (sf.col(field.name).isNull(), _hashable(field))]
    return sf.xxhash64(*parts)


def _hashable(field: st.StructField) -> Column:
    column = sf.col(field.name)
    return sf.map_entries(column) if isinstance(field.dataType, st.MapType) else column
