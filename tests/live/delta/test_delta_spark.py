"""A Delta sink alongside Delta Lake's own implementation, which creates the table, reads it, and maintains it."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.delta.delta_spark import delta_spark
from tests.unit.delta_support import next_commits
from tests.unit.lake_support import prepare
from twopc.attempt import Evidence
from twopc.sinks.delta import DeltaSink
from twopc.testing.contract.drivers import Driver, close_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.live.delta.delta_spark import DeltaSpark

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]

COMMITTED = Evidence.COMMITTED
UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def spark() -> Iterator[DeltaSpark]:
    with delta_spark() as started:
        yield started


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_opened()


def created(spark: DeltaSpark, path: Path, columns: str, *more: str) -> tuple[str, DeltaSink]:
    table = f"delta.`{path}`"
    spark.sql(f"CREATE TABLE {table} ({columns}) USING delta {' '.join(more)}")
    return table, DeltaSink(name="orders", table_uri=str(path), timeout_ms=20_000)


def values(spark: DeltaSpark, table: str) -> list[int]:
    return [row["value"] for row in spark.sql(f"SELECT value FROM {table} ORDER BY value")]


def committed(driver: Driver, sink: DeltaSink, *rows: int, batch: int) -> tuple[Any, Any]:
    scan_start = driver.begin()
    handle = prepare(driver, sink, *rows, batch=batch, attempt=batch)
    assert driver.commit([handle], scan_start) == [COMMITTED]
    return handle, scan_start


def test_spark_reads_each_type_and_finds_rows_by_statistics_and_partitions(spark: DeltaSpark, tmp_path: Path) -> None:
    columns = (
        "id INT NOT NULL, text STRING, f DOUBLE, amount DECIMAL(12, 2), part_amount DECIMAL(5, 2), at TIMESTAMP, "
        "local TIMESTAMP_NTZ, day DATE, part_at TIMESTAMP, tags ARRAY<STRING>, counts MAP<STRING, BIGINT>, "
        "more STRUCT<n: SMALLINT, b: BINARY>, flag BOOLEAN"
    )
    table, sink = created(spark, tmp_path / "t", columns, "PARTITIONED BY (part_at, part_amount, flag)")
    at = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
    local = at.replace(tzinfo=None)
    rows = [
        {
            "id": 1, "text": "a" * 50, "f": math.nan, "amount": Decimal("-1.25"), "part_amount": Decimal("-0.25"), "at": at,
            "local": local, "day": dt.date(1500, 1, 1), "part_at": at, "tags": ["x", None], "counts": [("k", 1)],
            "more": {"n": 3, "b": b"\x00\xff"}, "flag": True,
        },
        {"id": 2, "text": "b" * 50, "f": 1.5, "day": dt.date(2026, 1, 1), "local": local, "at": at},
    ]  # fmt: skip
    schema: Any = sink.store().load().schema().to_arrow()
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(pa.RecordBatch.from_pylist(rows, schema=pa.schema(schema)))
    assert driver.commit([handle], scan_start) == [COMMITTED]
    found = spark.sql(
        "SELECT id, text, string(f) f, string(amount) amount, string(part_amount) part_amount, unix_micros(at) at, "
        "string(local) local, string(day) day, unix_micros(part_at) part_at, tags, counts, more.n n, hex(more.b) b, flag "
        f"FROM {table} ORDER BY id"
    )
    micros = (at - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1)
    assert found[0] == {
        "id": 1, "text": "a" * 50, "f": "NaN", "amount": "-1.25", "part_amount": "-0.25", "at": micros,
        "local": "2026-03-29 01:30:00.123456", "day": "1500-01-01", "part_at": micros, "tags": ["x", None], "counts": {"k": 1},
        "n": 3, "b": "00FF", "flag": True,
    }  # fmt: skip
    assert [found[1][name] for name in ("part_amount", "part_at", "flag", "tags", "n")] == [None] * 5
    for condition, ids in {
        f"text = '{'b' * 50}'": [2],
        "f > 100": [1],  # Spark orders NaN above every number
        "at >= TIMESTAMP '2026-03-29 01:30:00.123456Z'": [1, 2],
        "local <= TIMESTAMP_NTZ '2026-03-29 01:30:00.123456'": [1, 2],
        "amount = -1.25": [1],
        "part_amount < 0": [1],
        "part_at = TIMESTAMP '2026-03-29 01:30:00.123456Z'": [1],
        "part_at IS NULL": [2],
        "flag": [1],
        "day < DATE '1600-01-01'": [1],
        "tags IS NULL": [2],
        "more IS NULL": [2],
        "more IS NOT NULL": [1],
        "more.n IS NULL": [2],
        "more.n = 3": [1],
    }.items():
        assert [row["id"] for row in spark.sql(f"SELECT id FROM {table} WHERE {condition} ORDER BY id")] == ids, (
            condition
        )


def test_spark_reads_ancient_dates_in_every_rebase_mode_as_they_were_written(spark: DeltaSpark, tmp_path: Path) -> None:
    """Before Spark 4.0, the default mode is EXCEPTION (SPARK-46440)."""
    table, sink = created(spark, tmp_path / "t", "day DATE, at TIMESTAMP")
    days = [dt.date(1, 1, 1), dt.date(1500, 1, 1)]
    times = [dt.datetime(1, 1, 2, tzinfo=UTC), dt.datetime(1899, 12, 31, 23, tzinfo=UTC)]
    schema: Any = sink.store().load().schema().to_arrow()
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(pa.RecordBatch.from_pydict({"day": days, "at": times}, schema=pa.schema(schema)))
    assert driver.commit([handle], scan_start) == [COMMITTED]
    micros = [(at - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1) for at in times]
    for mode in ("EXCEPTION", "LEGACY", "CORRECTED"):
        spark.sql(f"SET spark.sql.parquet.datetimeRebaseModeInRead = {mode}")
        found = spark.sql(f"SELECT string(day) day, unix_micros(at) at FROM {table} ORDER BY 1")
        assert [(row["day"], row["at"]) for row in found] == list(
            zip(["0001-01-01", "1500-01-01"], micros, strict=True)
        ), mode
    spark.sql("RESET spark.sql.parquet.datetimeRebaseModeInRead")


def test_spark_maintains_the_table_alongside_the_sink(spark: DeltaSpark, tmp_path: Path) -> None:
    """Its checkpoints, clean-up, OPTIMIZE, DELETE with deletion vectors, VACUUM and RESTORE spare the pointer and the record."""
    table, sink = created(spark, tmp_path / "t", "value BIGINT NOT NULL, note STRING")
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '2')"
    )
    driver = Driver(sink)
    for batch in range(4):
        handle, scan_start = committed(driver, sink, batch, batch + 100, batch=batch)
        driver.committer.recover_and_abort([handle])
        spark.sql(f"INSERT INTO {table} VALUES ({batch + 1000}, 'spark')")
    spark.sql(f"DELETE FROM {table} WHERE value = 103")
    spark.sql(f"OPTIMIZE {table}")
    spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
    log = tmp_path / "t" / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet")), "Spark should have written checkpoints"
    restarted = Driver(sink)
    assert restarted.committer.initialize_state([handle], scan_start) == {handle: COMMITTED}
    committed(restarted, sink, 4, batch=4)
    assert values(spark, table) == [0, 1, 2, 3, 4, 100, 101, 102, 1000, 1001, 1002, 1003]
    version = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1")[0]["version"]
    committed(restarted, sink, 5, batch=5)
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    committed(restarted, sink, 6, batch=6)
    assert values(spark, table) == [0, 1, 2, 3, 4, 6, 100, 101, 102, 1000, 1001, 1002, 1003]


def test_spark_may_commit_between_the_sinks_check_and_its_commit(spark: DeltaSpark, tmp_path: Path) -> None:
    table, sink = created(spark, tmp_path / "t", "value BIGINT NOT NULL, note STRING")
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = prepare(driver, sink, 1, 2)

    def overtaken(send: Callable[[], None]) -> None:
        spark.sql(f"INSERT INTO {table} VALUES (9, 'spark')")
        send()

    with next_commits(overtaken):
        assert driver.committer.commit([handle], scan_start) == {handle: COMMITTED}
    assert values(spark, table) == [1, 2, 9]


def test_table_features_added_by_spark_are_rejected_with_an_error_that_identifies_them(
    spark: DeltaSpark, tmp_path: Path
) -> None:
    table, sink = created(spark, tmp_path / "t", "value BIGINT NOT NULL, note STRING")
    Driver(sink)
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (value > 0)")
    with pytest.raises(Exception, match="has the constraint 'positive'"):
        Driver(sink)
    spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT positive")
    Driver(sink)
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with pytest.raises(Exception, match="uses column mapping"):
        Driver(sink)
