"""Limit the bytes that each task sends to the driver. Rows pass until they have used up a budget.

No expression in Spark SQL keeps a running total over rows, so the plan uses a counter from the Java library. ``Invoke``
(Catalyst's way to call an object's method) adds each row's bytes to the counter. A filter lets rows pass until the sum
exceeds the budget. Each plan has a separate counter. Spark serializes the counter with the plan, so each task receives
a separate copy. The filter is declared non-deterministic, so Spark neither moves it nor combines it with another filter
(``CombineFilters``). The filter reads its input to the end. A ``LIMIT`` would stop a stateful operator before it writes
its state.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from twopc.integration.spark.built_ins import functions_in
from twopc.integration.spark.offers import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

#: The bytes counted for each column and each array element, in addition to its text and binary data: the size of an Arrow
#: offset.
_LEAST_BYTES: Final = 4
#: The counter's class. It must not be a subclass of Java's ``Number``, because py4j would convert its objects to Python
#: numbers.
_COUNTER: Final = "java.util.concurrent.atomic.AtomicLongArray"
#: The types with a fixed size.
_FIXED: Final = (
    st.NumericType,
    st.BooleanType,
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
    st.DayTimeIntervalType,
    st.NullType,
)


class Budget:
    """Adds the limit to the DataFrames of a query's run. Each schema's filter is built once and reused in later batches."""

    def __init__(self) -> None:
        self._filters: dict[tuple[str, int], _Filter | None] = {}

    def bounded(self, frame: DataFrame, most_bytes: int) -> Any | None:
        """Limit each task to the rows up to and including the first row over the budget.

        Returns:
            the limited DataFrame, as Spark's Java object. The result is None if the rows cannot be measured. Either a type's size
            is unknown, or this version of Spark does not contain a class that the filter needs.
        """
        key = (frame.schema.json(), most_bytes)
        try:
            if key not in self._filters:
                bytes_of_row = _bytes_of_row(frame.schema)
                self._filters[key] = None if bytes_of_row is None else _Filter(frame, bytes_of_row, most_bytes)
            made = self._filters[key]
            return None if made is None else made.over(frame)
        except (Py4JError, PySparkException, TypeError) as error:  # py4j treats a missing class as a package
            logger.warning(
                "the driver cannot limit the rows that tasks send to it, so the tasks write every batch that may be large. "
                "No data is at risk. Cause: %s",
                error,
            )
            self._filters[key] = None
            return None


class _Filter:
    """Adds the filter to a plan. Looking up a Java class takes several calls to the JVM, so the classes are cached."""

    def __init__(self, frame: DataFrame, bytes_of_row: str, most_bytes: int) -> None:
        jvm: Any = frame.sparkSession._jvm  # noqa: SLF001 - no public API gives access to Catalyst
        parser = _session(frame).sessionState().sqlParser()
        catalyst, sequence = jvm.org.apache.spark.sql.catalyst, jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._counter, self._literal = _class(jvm, _COUNTER), catalyst.expressions.Literal.fromObject
        self._invoke, self._at_most = catalyst.expressions.objects.Invoke, catalyst.expressions.LessThanOrEqual
        self._bigint, self._most = parser.parseDataType("bigint"), parser.parseExpression(f"{most_bytes}L")
        self._arguments = sequence([parser.parseExpression(argument) for argument in ("0", bytes_of_row)])
        self._no_types = sequence([])
        self._node = catalyst.plans.logical.Filter
        self._dataset = _class(jvm, frame._jdf.getClass().getName())  # noqa: SLF001 - no public API gives access to Catalyst

    def over(self, frame: DataFrame) -> Any:
        # Each plan needs its own counter. If the rows are literals in the plan, Spark's optimizer filters them in the
        # driver and uses up the counter.
        spent_before = self._invoke(
            self._literal(self._counter(1)),
            "getAndAdd",
            self._bigint,
            self._arguments,
            self._no_types,
            False,  # noqa: FBT003 - propagateNull; no argument is null
            False,  # noqa: FBT003 - the parameter returnNullable
            False,  # noqa: FBT003 - isDeterministic: Spark must call it exactly once per row, at this point
        )
        plan = self._node(self._at_most(spent_before, self._most), frame._jdf.logicalPlan())  # noqa: SLF001 - see above
        return self._dataset.ofRows(_session(frame), plan)


def spent_bytes(batches: Iterable[pa.RecordBatch]) -> float:
    """Count the rows' bytes in the same way as the tasks did.

    A task holds back rows only after it has exceeded its budget. So if the rows fit into the budget, no row is missing. If
    the rows have a layout that Spark does not use today, the result is infinite, because a count that is too low would hide
    missing rows.
    """
    return sum(
        _LEAST_BYTES * batch.num_columns * batch.num_rows + sum(map(_bytes_in, batch.columns)) for batch in batches
    )


def functions_of_size(schema: st.StructType) -> frozenset[str]:
    """Return the names of the SQL functions that compute a row's size in bytes."""
    text = _bytes_of("", st.StringType())  # a sink may take a column of any type as text
    return functions_in(f"{text} + {_bytes_of_row(schema)}")


def _class(jvm: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), jvm)


def _session(frame: DataFrame) -> Any:
    return frame.sparkSession._jsparkSession  # noqa: SLF001 - see above


def _bytes_of_row(schema: st.StructType) -> str | None:
    """Build an SQL expression for a row's size in bytes.

    The expression's value is never null. Return None if a type's size is unknown.
    """
    sizes = [_bytes_of(quoted(field.name), field.dataType) for field in schema]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    return " + ".join([f"{_LEAST_BYTES * len(sizes)}L", *filter(None, known)])


def _bytes_of(value: str, kind: st.DataType) -> str | None:
    """Build an SQL expression for the size of a value's text and binary data.

    Return "" if the type has no text or binary data, and None if this is unknown.
    """
    if isinstance(kind, (st.BinaryType, st.StringType)):
        return f"COALESCE(OCTET_LENGTH({value}), 0)"
    if isinstance(kind, st.StructType) and len(set(kind.names)) == len(kind):
        sizes = [_bytes_of(f"{value}.{quoted(field.name)}", field.dataType) for field in kind]
        return None if None in sizes else " + ".join(filter(None, sizes))
    if isinstance(kind, st.MapType):
        entry = st.StructType([st.StructField("key", kind.keyType), st.StructField("value", kind.valueType)])
        return _bytes_of(f"MAP_ENTRIES({value})", st.ArrayType(entry))
    if isinstance(kind, st.ArrayType):
        size = _bytes_of("one", kind.elementType)
        each = None if size is None else " + ".join(filter(None, ["sum", f"{_LEAST_BYTES}L", size]))
        return each and f"COALESCE(AGGREGATE({value}, 0L, (sum, one) -> {each}), 0L)"
    return "" if isinstance(kind, _FIXED) else None


def _bytes_in(column: Any) -> float:
    """Add up the bytes of text and binary data in a column, at any depth. Data inside a null value is not counted."""
    kind: Any = column.type
    if pa.types.is_struct(kind):
        return sum(map(_bytes_in, column.flatten()))
    if pa.types.is_map(kind):  # Arrow can flatten only lists
        entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        return _bytes_in(column.cast(pa.list_(entry)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = column.flatten()
        return _LEAST_BYTES * len(elements) + _bytes_in(elements)
    if kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
        return int(pc.sum(pc.binary_length(column)).as_py() or 0)
    is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)
    return 0 if is_fixed else math.inf
