"""The checksum of a row identifies the row in a replay, although the program may have changed since the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from tests.unit.fake_sink import FakeSink, World
from twopc.integration.spark.frame import arrange
from twopc.integration.spark.views import CHECKSUM
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from typing_extensions import Self

KAFKA = KafkaSink(name="events", bootstrap_servers="nowhere:1", topic="t")
ALL = FakeSink(World(), name="all")  # takes every column unchanged


class Frame(DataFrame):
    """A DataFrame without a session, with columns of text. It returns the expressions that it is asked for."""

    def __new__(cls, *_: str) -> Self:
        return object.__new__(cls)

    def __init__(self, *names: str) -> None:
        self._names = names

    @property
    def schema(self) -> st.StructType:
        return st.StructType([st.StructField(name, st.StringType()) for name in self._names])

    @property
    def columns(self) -> list[str]:
        return list(self._names)

    def selectExpr(self, *expressions: Any) -> Any:  # noqa: N802 - PySpark's name
        return expressions


def checksum(names: tuple[str, ...], *sinks: Any) -> str:
    expressions: Any = arrange("", Frame(*names), sinks, select={}).frame()
    [found] = [one for one in expressions if one.endswith(f" AS {CHECKSUM}")]
    return str(found)


@pytest.mark.parametrize(
    ("names", "sinks"),
    [
        (("id", "key", "value"), (KAFKA, ALL)),
        (("value", "id", "key"), (ALL, KAFKA)),
        (("key", "value", "id"), (KAFKA, ALL)),
    ],
    ids=["sinks in another order", "columns in another order", "both"],
)
def test_the_checksum_does_not_depend_on_the_order_of_sinks_or_columns(
    names: tuple[str, ...], sinks: tuple[Any, ...]
) -> None:
    """Fails if a batch that lost some transactions cannot be repaired after a harmless change of the program."""
    assert checksum(names, *sinks) == checksum(("id", "key", "value"), ALL, KAFKA)


def test_a_further_sink_of_the_same_columns_does_not_change_the_checksum() -> None:
    names = ("value", "key", "id")
    assert checksum(names, ALL, FakeSink(World(), name="a")) == checksum(names, ALL)


def test_the_checksum_depends_on_which_column_has_which_value() -> None:
    """A column's name decides its place in the hash. So if two columns swap their names, the hash changes."""
    text = checksum(("b", "a"), ALL)
    assert text.index("`a`") < text.index("`b`")


def test_each_sink_receives_its_columns_in_the_dataframes_order() -> None:
    rows = arrange("", Frame("value", "id", "key"), (KAFKA, ALL), select={})
    assert [name for name, _ in rows.views["all"].columns] == ["value", "id", "key"]
    for view in rows.views.values():
        assert all(f"`{name}`" in rows.columns[index].sql for name, index in view.columns)
