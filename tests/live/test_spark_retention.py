"""The data that a query keeps: the query deletes only the decisions of completed batches. Users manage everything else."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.broker_changes import delete_topic
from tests.live.spark_support import Pipeline, spark
from twopc import CheckpointConfig
from twopc.records import Decision
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

__all__ = ["spark"]

_SPARKS = "spark.sql.streaming.minBatchesToRetain"


def _decided(pipeline: Pipeline) -> list[int]:
    sink = KafkaSink(name=pipeline.options.name, bootstrap_servers=pipeline.bootstrap_servers)
    with closing(sink.create_decision_log()) as ledger:
        found = [entry.record for entry in ledger.inspect().entries]
    return [record.batch_id for record in found if isinstance(record, Decision)]


@pytest.mark.whole
@pytest.mark.parametrize(("num_retained", "sparks", "kept"), [(3, 2, 3), (1, 4, 4)])
def test_decisions_are_kept_as_long_as_the_user_or_spark_needs_them(
    num_retained: int, sparks: int, kept: int, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(
        kafka.bootstrap_servers,
        tmp_path,
        max_offsets=4,
        settings={"checkpoints": CheckpointConfig(num_retained=num_retained)},
    )
    pipeline.feed(44)
    spark.conf.set(_SPARKS, sparks)
    try:
        pipeline.run(spark)
        decided = _decided(pipeline)
        last = decided[-1]
        assert last >= 2 * kept
        assert decided == list(range(last - len(decided) + 1, last + 1))
        assert kept <= len(decided) < 2 * kept
        pipeline.feed(4)
        pipeline.run(spark)
    finally:
        spark.conf.unset(_SPARKS)
    pipeline.require_exactly_once()


@pytest.mark.whole
def test_a_stopped_query_keeps_everything_and_its_name_is_free_once_everything_is_deleted(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(8)
    pipeline.run(spark)
    kept = set(Path(pipeline.options.checkpoint, "twopc").iterdir())
    pipeline.feed(8)
    pipeline.run(spark)
    pipeline.require_exactly_once()
    assert kept <= set(Path(pipeline.options.checkpoint, "twopc").iterdir())

    shutil.rmtree(pipeline.options.checkpoint)
    assert "name in use" in pipeline.fail(spark)
    shutil.rmtree(pipeline.options.checkpoint)
    ledger = KafkaSink(name=pipeline.options.name, bootstrap_servers=pipeline.bootstrap_servers).ledger
    delete_topic(pipeline.bootstrap_servers, ledger)
    pipeline.run(spark)
    assert set(pipeline.visible().values()) == {2}  # the new query has processed all of the input
    assert pipeline.visible().keys() == pipeline.given.keys()
