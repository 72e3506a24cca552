"""A stopped query continues after a restart with the setting that its error names, copied from the error."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.file_query import BATCHES, VALUES, Query, kafka_sink, values
from tests.live.rules.schedules import until
from tests.live.spark_support import spark
from twopc import Abandon, AdoptQuery, ResumeAt
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.transactions import TransactionClient
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce
    from twopc.sinks.kafka import KafkaSink

__all__ = ["spark"]


def named_settings(message: str) -> dict[str, Any]:
    [(name, batch, query_id)] = set(re.findall(r"override=(ResumeAt|Abandon)\((\d+), '(\S+)'\)", message))
    return {"override": {"ResumeAt": ResumeAt, "Abandon": Abandon}[name](int(batch), query_id)}


def expire(sink: KafkaSink) -> None:
    """End one of the sink's open transactions, as a broker does when its time runs out."""
    with contextlib.closing(TransactionClient(sink.committing_config())) as client:
        name, *_ = client.list_open(f"{sink.name}.").transactional_ids
        assert until(lambda: client.fence([ProducerIdentity(name)])[name] == "NONE")


@pytest.mark.whole
def test_the_setting_in_the_error_resumes_a_query_whose_function_skipped_empty_batches(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sink = kafka_sink(kafka.bootstrap_servers)

    def skip_empty(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            if not batch.isEmpty():
                each(batch, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=skip_empty)
    for rows in (BATCHES[0], []):  # one by one: Spark reads files of the same time in any order
        query.feed(*rows)
        query.run()
    query.feed(*BATCHES[1])
    message = query.refused()
    query.settings = named_settings(message)
    assert query.settings == {"override": ResumeAt(2, query.settings["override"].query_id)}
    query.function = lambda each: each  # as the message says
    query.run()
    for rows in ([], BATCHES[2]):
        query.feed(*rows)
        query.run()
    assert values(sink) == Counter(str(row["n"]) for rows in BATCHES for row in rows)


@pytest.mark.whole
def test_the_setting_in_the_error_abandons_a_lost_batch_that_the_users_function_skipped(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """That Spark has moved on proves nothing: the function has swallowed the error."""
    sink = kafka_sink(kafka.bootstrap_servers)

    def swallow(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            with contextlib.suppress(crash_points.InjectedFault):
                each(batch, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=swallow)
    query.feed(*BATCHES[0])
    crash_points.arm_from("driver.decided=raise")
    query.run()
    crash_points.disarm()
    expire(sink)
    query.feed(*BATCHES[1])
    message = query.refused()
    assert "InDoubtError" in message and "cannot replay" in message
    query.settings = named_settings(message)
    assert query.settings == {"override": Abandon(0, query.settings["override"].query_id)}
    query.run()
    query.feed(*BATCHES[2])
    query.run()
    assert values(sink) == Counter(str(row["n"]) for rows in BATCHES[1:] for row in rows)


@pytest.mark.whole
def test_an_adopted_query_does_not_skip_a_batch_whose_error_the_function_swallowed(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark has recorded the failed batch as complete. Fails if the next batch becomes the adopted query's first one."""
    sink = kafka_sink(kafka.bootstrap_servers)
    query = Query(spark, tmp_path, (sink,), function=lambda _: lambda *_: None)  # the function does not call the sink
    query.feed(*BATCHES[0])
    query.run()
    query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    query.settings = {"override": AdoptQuery(query_id)}

    def swallow(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            with contextlib.suppress(crash_points.InjectedFault):
                each(batch, batch_id)

        return write

    query.function = swallow
    query.feed(*BATCHES[1])
    crash_points.arm_from("driver.confirmed=raise")
    query.run()
    crash_points.disarm()
    query.feed(*BATCHES[2])
    assert "expects batch 1. From batch 1 on, the function either did not call" in query.refused()
    for kind, above in {"offsets": 1, "commits": 0}.items():  # as the message says
        for path in (tmp_path / "checkpoint" / kind).glob(f"*{above + 1}*"):
            path.unlink()
    query.run()
    assert values(sink) == Counter(str(row["n"]) for rows in BATCHES[1:] for row in rows)


def test_a_function_that_catches_an_error_and_calls_again_recovers_first(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """The failed call has decided and committed nothing. Without recovery, the second call cannot prove anything either."""
    sink = kafka_sink(kafka.bootstrap_servers)
    caught = list[int]()

    def again(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            try:
                each(batch, batch_id)
            except crash_points.InjectedFault:
                caught.append(batch_id)
                each(batch, batch_id)

        return write

    query = Query(spark, tmp_path, (sink,), function=again)
    for rows in BATCHES:
        query.feed(*rows)
    crash_points.arm_from("driver.decided@2=raise")
    query.run()
    assert caught == [1]
    assert values(sink) == VALUES
