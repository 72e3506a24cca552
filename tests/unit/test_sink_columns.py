"""By default, a sink takes the columns that it names, unchanged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.unit.fake_sink import FakeSink, World
from twopc.errors import SchemaError
from twopc.sink import TYPE_NAME, SinkColumn, type_name
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy

TOTALS = RedisSink(name="totals", url="redis://nowhere", mapping=IncrBy(key="{id}", by="n"))
KINDS: dict[str, Any] = {"n": pa.int64(), "other": pa.int64(), "id": pa.string()}


def test_a_sink_without_a_column_list_takes_all_columns() -> None:
    assert FakeSink(World()).choose_columns(pa.schema(KINDS)) == tuple(SinkColumn(name, name) for name in KINDS)


def test_a_sink_takes_its_listed_columns_in_the_batchs_order() -> None:
    assert TOTALS.choose_columns(pa.schema(KINDS)) == (SinkColumn("n", "n"), SinkColumn("id", "id"))


def test_the_error_for_a_missing_column_lists_the_existing_ones() -> None:
    with pytest.raises(SchemaError, match=r"no column 'id' \(columns: 'n', 'other'\)"):
        TOTALS.choose_columns(pa.schema({name: kind for name, kind in KINDS.items() if name != "id"}))


def test_a_column_of_the_wrong_type_is_rejected_before_any_row() -> None:
    with pytest.raises(SchemaError, match="column 'n' is string"):
        TOTALS.choose_columns(pa.schema(KINDS | {"n": pa.string()}))


def test_a_type_is_shown_under_the_engines_name_or_else_under_that_of_arrow() -> None:
    assert type_name(pa.field("n", pa.int64(), metadata={TYPE_NAME: "bigint"})) == "bigint"
    assert type_name(pa.field("n", pa.int64())) == "int64"
