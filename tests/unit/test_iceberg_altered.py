"""An Iceberg table that was altered after a decision takes only files that its readers can still read."""

from __future__ import annotations

import copy
import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from tests.unit.iceberg_support import Shop
from tests.unit.lake_support import evidence, prepare
from twopc.attempt import Evidence
from twopc.sinks.iceberg.fit import find_unreadable
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType

    from tests.faulty_catalog import Send


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    yield Shop(tmp_path)
    close_opened()


def replaced(content: dict[str, Any], column: int = 0) -> None:
    """``CREATE OR REPLACE TABLE … (value DATE, note STRING)``: Iceberg for Java keeps the ids of columns with the same names."""
    schema = copy.deepcopy(content["schemas"][-1])
    schema["schema-id"] = content["current-schema-id"] = schema["schema-id"] + 1
    schema["fields"][column]["type"] = "date"
    content["schemas"].append(schema)
    content["refs"].pop("main")
    content["current-snapshot-id"] = -1


def made_required(content: dict[str, Any]) -> None:
    """``ALTER TABLE … ALTER COLUMN note SET NOT NULL``."""
    schema = copy.deepcopy(content["schemas"][-1])
    schema["schema-id"] = content["current-schema-id"] = schema["schema-id"] + 1
    schema["fields"][1]["required"] = True
    content["schemas"].append(schema)


@pytest.mark.parametrize(
    ("change", "why"),
    [(replaced, "the column 'value' is now date"), (made_required, "the column 'note' is now NOT NULL")],
)
@pytest.mark.parametrize("within", [True, False], ids=["within the commit", "before the commit"])
def test_files_that_no_longer_fit_the_columns_are_not_added(change: Any, why: str, shop: Shop, *, within: bool) -> None:
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)

    def overtaken(send: Send) -> Any:
        shop.edit(change)
        return send()

    if within:
        with shop.next_commits(overtaken):
            assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    else:
        shop.edit(change)
        assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    [blocker] = driver.committer.blockers()
    assert why in blocker and "shop.orders was altered after the batch was decided" in blocker
    assert list(shop.table().scan().plan_files()) == []


def copied(table: Table) -> None:
    """Replace the column ``note`` in the order that the error advises."""
    with table.update_schema() as update:
        update.add_column("copied", DateType())
    rows = table.scan().to_arrow()
    table.overwrite(rows.set_column(rows.schema.get_field_index("copied"), "copied", rows.column("note")))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("note")
    with table.update_schema() as update:
        update.rename_column("copied", "note")


def test_a_column_that_was_copied_before_it_was_dropped_keeps_its_values_and_lets_a_decided_batch_in(
    shop: Shop,
) -> None:
    """Readers find a column by its id, and a column that was added again has a new one, so its old values are lost."""
    driver = Driver(shop.sink)
    scan_start = driver.begin()
    handle = prepare(driver, shop.sink, 1, 2)
    driver.committer.confirm([handle], 0)
    shop.edit(partial(replaced, column=1))
    theirs = dt.date(2026, 1, 2)
    shop.change(lambda table: table.append(pa.table({"value": [9], "note": [theirs]}, table.schema().as_arrow())))
    assert evidence(driver, [handle], scan_start) == [Evidence.UNKNOWN]
    [blocker] = driver.committer.blockers()
    assert "the column 'note' is now date" in blocker
    assert "copy the values to it (UPDATE), drop the old column, and rename the new column" in blocker

    shop.change(copied)
    assert Driver(shop.sink).committer.initialize_state([handle], scan_start) == {handle: Evidence.COMMITTED}
    rows = shop.table().scan().to_arrow().to_pylist()
    assert {row["value"]: row["note"] for row in rows} == {9: theirs, 1: None, 2: None}


def _one(kind: IcebergType, *, required: bool = False) -> Schema:
    return Schema(NestedField(1, "a", kind, required=required))


def _struct(*fields: NestedField) -> StructType:
    return StructType(*fields)


def _list(kind: IcebergType, *, required: bool = False) -> ListType:
    return ListType(2, kind, element_required=required)


def _map(value: IcebergType) -> MapType:
    return MapType(2, StringType(), 3, value)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (_one(IntegerType()), _one(LongType())),
        (_one(FloatType()), _one(DoubleType())),
        (_one(DecimalType(9, 2)), _one(DecimalType(12, 2))),
        (_one(LongType(), required=True), _one(LongType())),
        (_one(LongType()), Schema(NestedField(1, "renamed", LongType()), NestedField(2, "b", LongType()))),
        (_one(LongType()), Schema(NestedField(7, "a", StringType()))),
        (_one(_list(IntegerType(), required=True)), _one(_list(LongType()))),
        (
            _one(LongType()),
            Schema(
                NestedField(1, "a", LongType()),
                NestedField(2, "b", _struct(NestedField(3, "c", LongType(), required=True))),
            ),
        ),
    ],
)
def test_a_schema_that_reads_older_files_accepts_them(before: Schema, now: Schema) -> None:
    assert list(find_unreadable(before, now)) == []


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (_one(LongType()), _one(IntegerType()), "the column 'a' is now int"),
        (_one(IntegerType()), _one(DateType()), "the column 'a' is now date"),
        (_one(DecimalType(9, 2)), _one(DecimalType(12, 4)), "the column 'a' is now decimal(12, 4)"),
        (_one(DecimalType(9, 2)), _one(DecimalType(8, 2)), "the column 'a' is now decimal(8, 2)"),
        (_one(BinaryType()), _one(StringType()), "the column 'a' is now string"),
        (_one(LongType()), _one(LongType(), required=True), "the column 'a' is now NOT NULL"),
        (
            _one(LongType()),
            Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType(), required=True)),
            "the column 'b' was added as NOT NULL",
        ),
        (_one(LongType()), _one(_list(LongType())), "the column 'a' is now list<long>"),
        (_one(_list(LongType())), _one(_list(DateType())), "the column 'a.element' is now date"),
        (_one(_list(LongType())), _one(_list(LongType(), required=True)), "the column 'a.element' is now NOT NULL"),
        (_one(_map(LongType())), _one(_map(DateType())), "the column 'a.value' is now date"),
        (
            _one(_struct(NestedField(2, "b", LongType()))),
            _one(_struct(NestedField(2, "b", LongType()), NestedField(3, "c", LongType(), required=True))),
            "the column 'a.c' was added as NOT NULL",
        ),
    ],
)
def test_a_column_that_older_files_do_not_fit_is_found(before: Schema, now: Schema, why: str) -> None:
    assert list(find_unreadable(before, now)) == [why]
