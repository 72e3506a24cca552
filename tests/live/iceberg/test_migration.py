"""A query that Spark's own Iceberg or Delta writer has run continues with this project's sink, on the same checkpoint."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.live.file_query import BATCHES, Query
from tests.live.lakehouse_writer import Writer
from tests.live.spark_support import spark
from twopc import AdoptQuery, DeltaSink, IcebergSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.warehouse import RestWarehouse

__all__ = ["spark"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.whole,
    pytest.mark.timeout(300),
]

_TABLE = "shop.orders"
_COLUMNS = "id STRING, n BIGINT"


def iceberg(warehouse: RestWarehouse) -> tuple[Any, dict[str, str], Callable[[], pa.Table]]:
    warehouse.create(_TABLE, Schema(NestedField(1, "id", StringType()), NestedField(2, "n", LongType())))
    sink = IcebergSink(name="orders", catalog=warehouse.properties, table=_TABLE)
    uri = warehouse.properties["uri"]
    return sink, {"format": "iceberg", "table": _TABLE, "uri": uri}, lambda: warehouse.rows(_TABLE)


def delta(directory: Path) -> tuple[Any, dict[str, str], Callable[[], pa.Table]]:
    path = str(directory / "table")
    columns: list[Any] = [("id", pa.string()), ("n", pa.int64())]
    DeltaTable.create(path, pa.schema(columns))
    sink = DeltaSink(name="orders", table_uri=path)
    return sink, {"format": "delta", "table": path, "uri": ""}, lambda: DeltaTable(path).to_pyarrow_table()


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_batch_written_but_not_recorded_by_spark_is_refused_until_the_old_query_records_it(
    kind: str, spark: SparkSession, rest_warehouse: RestWarehouse, tmp_path: Path
) -> None:
    sink, writing, rows = iceberg(rest_warehouse) if kind == "iceberg" else delta(tmp_path)
    query = Query(spark, tmp_path, (sink,), {})
    (scratch := tmp_path / "scratch").mkdir()
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    directories = {"source": str(source), "checkpoint": str(checkpoint), "scratch": str(scratch)}
    old = Writer(**writing, **directories, columns=_COLUMNS)
    query.feed(*BATCHES[0])
    old.run()
    older = Path(shutil.copytree(checkpoint, tmp_path / "older"))
    query.feed(*BATCHES[1])
    old.run()
    # The process was killed between the commit to the table and Spark's own record of the batch.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    query.feed(*BATCHES[2])

    # The checkpoint contains batches that this project has not written, so a start must name the query.
    query.settings["override"] = AdoptQuery(json.loads((checkpoint / "metadata").read_text())["id"])
    found = query.refused("*")
    assert "written already: " in found and f"has written batch 1 to the store of sink {sink.name!r}" in found
    newest = checkpoint.rename(tmp_path / "newest")
    shutil.copytree(older, checkpoint)
    assert "older copy: " in query.refused("*")  # Spark plans batch 1 again, and the old query would skip its rows
    shutil.rmtree(checkpoint)
    newest.rename(checkpoint)
    old.run()
    query.feed({"id": "last", "n": 1})
    query.run("*")
    expected = Counter([*(row["id"] for batch in BATCHES for row in batch), "last"])
    assert Counter(rows().column("id").to_pylist()) == expected
