"""Offer each sink the columns that it chooses from: the DataFrame's own columns, or the columns that the sink's expressions make.

The expressions for all sinks are in one projection of the user's DataFrame. So ``*`` means the user's columns,
regardless of the other sinks' expressions and their order, and each expression is evaluated once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from twopc.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

_SELECTED: Final = "__twopc_selected"


@dataclass(frozen=True)
class Offer:
    """Columns to choose from.

    Attributes:
        columns: the columns' names and types.
        paths: the SQL expression for each column.
    """

    columns: st.StructType
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Offers:
    """The columns that the sinks of a DataFrame choose from.

    Attributes:
        base: the DataFrame that the paths refer to. If no sink has expressions, this is the user's DataFrame.
        own: the DataFrame's columns.
        made: maps a sink's name to the columns that the sink's expressions make.
    """

    base: DataFrame
    own: Offer
    made: Mapping[str, Offer]

    def to(self, sink: str) -> Offer:
        """Return the columns that a sink chooses from."""
        return self.made.get(sink, self.own)


def offers(frame: DataFrame, select: Mapping[str, Sequence[str]]) -> Offers:
    """Add to a DataFrame the columns that the sinks' expressions create. Does not evaluate anything.

    Args:
        frame: the user's DataFrame.
        select: the expressions, by sink name.

    Raises:
        SchemaError: Spark cannot make the columns. The message identifies the sink and states Spark's reason.
    """
    own = frame.schema
    if not select:
        return _reachable(frame, own, {}, "")
    name = _SELECTED
    while name in map(str.lower, own.names):
        name += "_"
    try:
        base = _with_structs(frame, select, name)
    except AnalysisException as error:
        raise _refusal(frame, select, name) or error from None
    made = cast("st.StructType", base.schema[-1].dataType)
    kinds = [cast("st.StructType", field.dataType) for field in made]
    return _reachable(base, own, dict(zip(select, kinds, strict=True)), quoted(name))


def quoted(name: str) -> str:
    """Quote a column name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def _with_structs(frame: DataFrame, select: Mapping[str, Sequence[str]], name: str) -> DataFrame:
    # One struct contains a struct for each sink. Spark may resolve a name to an earlier column of the same call (lateral column
    # aliases), so the sinks' columns must not be columns of this call.
    structs = [_struct(expressions).alias(str(number)) for number, expressions in enumerate(select.values())]
    return frame.select("*", sf.struct(*structs).alias(name))


def _struct(expressions: Sequence[str]) -> Column:
    # A struct cannot contain a generator, which makes several rows from one. This is intended, because the other sinks
    # would also receive those rows.
    return sf.struct(*map(sf.expr, expressions))


def _refusal(frame: DataFrame, select: Mapping[str, Sequence[str]], name: str) -> SchemaError | None:
    """Build the error for the first sink whose expressions fail without the other sinks' expressions, or return None."""
    for sink, expressions in select.items():
        try:
            _with_structs(frame, {sink: expressions}, name)
        except AnalysisException as error:
            reason = str(error).strip().partition("\n")[0]
            has = ", ".join(map(repr, frame.columns))
            return SchemaError(
                f"sink {sink}: select={list(expressions)!r} does not match the DataFrame (columns: {has}). Nothing was "
                "written. Fix the expressions. If an operation changes the number of rows, apply it to the DataFrame "
                f"instead. Spark's error: {reason}"
            )
    return None


def _reachable(base: DataFrame, own: st.StructType, made: Mapping[str, st.StructType], struct: str) -> Offers:
    """Give every column a path: its name, or its position if Spark cannot distinguish two names, such as key and KEY."""
    if not any(map(is_ambiguous, [own, *made.values()])):
        of_own = Offer(own, tuple(map(quoted, own.names)))
        paths = {
            sink: tuple(f"{struct}.`{number}`.{quoted(name)}" for name in columns.names)
            for number, (sink, columns) in enumerate(made.items())
        }
        return Offers(base, of_own, {sink: Offer(made[sink], paths[sink]) for sink in made})
    flat = base.select("*", *(f"{struct}.`{number}`.*" for number in range(len(made))))
    names = list(map(str, range(len(flat.columns))))
    start, places = len(own) + bool(made), {}
    for sink, columns in made.items():
        places[sink] = Offer(columns, tuple(map(quoted, names[start : start + len(columns)])))
        start += len(columns)
    return Offers(flat.toDF(*names), Offer(own, tuple(map(quoted, names[: len(own)]))), places)


def is_ambiguous(columns: st.StructType) -> bool:
    """Whether Spark may treat two names as the same; by default, Spark ignores case."""
    return len({name.upper().lower() for name in columns.names}) < len(columns)
