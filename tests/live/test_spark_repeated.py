"""A warning where DataFrames of one batch may disagree about its rows, because Spark evaluates each of them separately."""

from __future__ import annotations

import logging
import random
import uuid
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import functions as sf

from tests.live.file_query import BATCHES, Query, kafka_sink
from tests.live.spark_support import spark
from twopc.integration.spark import repeated as repeated_module
from twopc.integration.spark.repeated import Repeated
from twopc.integration.spark.several import SinkFrame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def by_function(frame: DataFrame) -> DataFrame:
    return frame.withColumn(
        "left", sf.udf(lambda _: random.SystemRandom().random() < 0.5, "boolean").asNondeterministic()("id")
    )


def halves(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return frame.where("left"), frame.where("NOT left")


def table(batch: DataFrame, path: Path) -> DataFrame:
    batch.sparkSession.range(2).write.mode("overwrite").parquet(str(path))
    return batch.sparkSession.read.parquet(str(path))


def by_subquery(batch: DataFrame, known: DataFrame) -> tuple[DataFrame, DataFrame]:
    known.createOrReplaceTempView("known")
    return batch.where("id IN (SELECT id FROM known)"), batch.where("id NOT IN (SELECT id FROM known)")


@pytest.mark.parametrize(
    ("split", "is_warned"),
    [
        (lambda batch, known: (batch.join(known, "id", "semi"), batch.join(known, "id", "anti")), True),
        (lambda batch, known: (batch.join(known.persist(), "id", "semi"), batch.join(known, "id", "anti")), False),
        (lambda batch, known: (batch.join(known, "id", "semi"), batch), False),
        (lambda batch, _: halves(batch.withColumn("left", sf.expr("row_number() OVER (ORDER BY id % 2) < 3"))), True),
        (lambda batch, _: halves(batch.withColumn("left", sf.expr("id > 1")).dropDuplicates(["left"])), True),
        (lambda batch, _: halves(batch.withColumn("left", sf.expr("id > 1")).dropDuplicates()), False),
        (lambda batch, _: (batch.limit(2), batch.limit(2)), True),
        (lambda batch, _: (batch.limit(0), batch.limit(0)), False),
        (by_subquery, True),
        (lambda batch, _: halves(batch.groupBy((sf.col("id") > 1).alias("left")).count()), False),
        (
            lambda batch, _: halves(batch.groupBy(sf.col("id") % 2).agg(sf.expr("max_by(id > 1, 0)").alias("left"))),
            True,
        ),
        (lambda batch, _: halves(batch.groupBy(sf.col("id") % 2).agg(sf.expr("max(id > 1)").alias("left"))), False),
    ],
)
def test_dataframes_that_read_a_table_or_depend_on_an_order_are_reported_once(
    split: Callable[[DataFrame, DataFrame], Any],
    *,
    is_warned: bool,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch = spark.range(4)
    parts = split(batch, table(batch, tmp_path / "known"))
    frames = [SinkFrame(f"sink{number}", frame, ()) for number, frame in enumerate(parts)]
    repeated = Repeated()
    with caplog.at_level(logging.DEBUG, "twopc.integration.spark.repeated"):
        for batch_id in (7, 8):
            repeated.look(frames, str(uuid.uuid4()), batch_id)
    spark.catalog.clearCache()
    texts = said(caplog)
    assert len(texts) == is_warned
    assert all("batch 7" in text and "'sink0' and 'sink1' may see different rows" in text for text in texts)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the module under test has logged. Meanwhile, clients of earlier tests may report that they lost their broker."""
    return [record.getMessage() for record in caplog.records if record.name == "twopc.integration.spark.repeated"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in said(caplog) if "not deterministic" in text]


@pytest.mark.parametrize(
    ("split", "is_warned"),
    [
        (lambda batch: halves(by_function(batch)), True),
        (lambda batch: halves(batch.withColumn("left", sf.rand() < 0.5)), True),
        (lambda batch: (batch.where("rand(1) < 0.5"), batch.where("rand(1) >= 0.5")), True),
        (lambda batch: halves(by_function(batch).persist()), True),
        (lambda batch: halves(by_function(batch).localCheckpoint()), False),
        (lambda batch: halves(batch.withColumn("left", sf.expr("id % 2 = 0"))), False),
        (lambda batch: (batch.where("rand(1) < 0.5"), batch), False),
        (lambda batch: (by_function(batch),), False),
    ],
)
def test_two_dataframes_that_may_disagree_are_reported_once(
    split: Callable[[DataFrame], Any], *, is_warned: bool, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [SinkFrame(f"sink{number}", frame, ()) for number, frame in enumerate(split(spark.range(4)))]
    repeated = Repeated()
    with caplog.at_level(logging.DEBUG, "twopc.integration.spark.repeated"):
        for batch_id in (7, 8):
            repeated.look(frames, str(uuid.uuid4()), batch_id)
    spark.catalog.clearCache()
    assert len(said(caplog)) == is_warned
    assert all(
        "batch 7" in text and "'sink0' and 'sink1'" in text and "localCheckpoint()" in text for text in warnings(caplog)
    )


def by_nothing(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return frame.limit(0), frame.limit(0)


def by_checkpoint(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return halves(by_function(frame).localCheckpoint())


def by_random(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return halves(frame.withColumn("left", sf.rand(563) < 0.5))


def by_negative_random(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return halves(frame.withColumn("left", sf.rand(-8471) < 0.5))


def by_order(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    return frame.limit(2), frame.limit(3)


def test_a_function_that_writes_the_same_sinks_in_another_way_later_is_reported(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batches may be empty, for example. Batches with DataFrames of the same form are examined once.

    Spark chooses a new seed for each batch, and the seed may be negative.
    """
    causes = MagicMock(wraps=repeated_module._causes)
    monkeypatch.setattr(repeated_module, "_causes", causes)
    repeated = Repeated()
    splits = (by_nothing, by_checkpoint, by_random, by_negative_random, by_random, by_order, by_order)
    with caplog.at_level(logging.DEBUG, "twopc.integration.spark.repeated"):
        for batch_id, split in enumerate(splits):
            frames = [SinkFrame(f"sink{number}", frame, ()) for number, frame in enumerate(split(spark.range(4)))]
            repeated.look(frames, str(uuid.uuid4()), batch_id)
    assert [text.partition(" the DataFrames for")[0] for text in said(caplog)] == [
        "batch 2: Spark reports that",
        "batch 5:",
    ]
    assert causes.call_count == 4


def test_a_plan_that_differs_in_each_batch_is_not_examined_in_each_batch(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_module, "_MOST_FORMS", 3)
    repeated = Repeated()
    with caplog.at_level(logging.DEBUG, "twopc.integration.spark.repeated"):
        for batch_id, name in enumerate("abcde"):
            left, right = halves(spark.range(4).withColumn("left", sf.lit(name) < ("b" if batch_id < 3 else sf.rand())))
            repeated.look([SinkFrame("sink0", left, ()), SinkFrame("sink1", right, ())], str(uuid.uuid4()), batch_id)
    assert ["'sink0' and 'sink1'" in text and "3 different forms" in text for text in said(caplog)] == [True]


def first_of_each(frame: DataFrame) -> DataFrame:
    """The first row for each id, in an order that Spark does not promise."""
    dated = frame.selectExpr("*", "TIMESTAMP_SECONDS(n) AS at", "n > 1 AS left")
    return dated.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"]).drop("at")


@pytest.mark.parametrize(
    ("plan", "reason"), [(by_function, "not deterministic"), (first_of_each, "DeduplicateWithinWatermark")]
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_randomness_in_the_query_itself_is_reported_too(
    plan: Callable[[DataFrame], DataFrame],
    reason: str,
    *,
    is_cut: bool,
    kafka: KafkaService,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, two = kafka_sink(kafka.bootstrap_servers), kafka_sink(kafka.bootstrap_servers)

    def function(each: Any) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            left, right = halves(batch.localCheckpoint() if is_cut else batch)
            each({one.name: left, two.name: right}, batch_id)

        return write

    query = Query(spark, tmp_path, (one, two), function=function, plan=plan)
    for rows in BATCHES[:2]:
        query.feed(*rows)
    with caplog.at_level(logging.WARNING, "twopc.integration.spark.repeated"):
        query.run()
    found = [text for text in said(caplog) if reason in text]
    assert len(found) == (not is_cut)
    assert all(repr(one.name) in text and repr(two.name) in text for text in found)
