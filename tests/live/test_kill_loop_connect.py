"""The kill loop under Spark Connect: it kills the process of the function, the server, the client, or all of them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.pipeline import create_topic
from tests.live.test_kill_loop import appends_to, numbers_in
from tests.reader import committed
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink
from twopc.testing.kill_loop import KafkaTopic, Moment, Victim, kill_loop

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.live.services import KafkaService

pytestmark = [pytest.mark.whole, pytest.mark.calm, pytest.mark.timeout(1800)]


def test_the_kill_loop_finds_that_an_append_duplicates_a_batch_no_matter_which_process_dies(
    tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    database = tmp_path / "rows.db"
    outcome = kill_loop(
        lambda: numbers_in(database),
        foreach_batch=appends_to(database),
        directory=tmp_path / "loop",
        rows=40,
        kills=3,
        moments=[Moment.AFTER] * 3,
        victims=[Victim.WORKER, Victim.SERVER, Victim.ALL],
        connect=True,
    )
    add_summary(str(outcome))
    assert [kill.partition("@")[0] for kill in outcome.kills] == ["after"] * 3
    assert outcome.lost == ()
    assert sum(times - 1 for times in outcome.duplicated.values()) == 15  # each kill duplicates a batch
    assert outcome.zombies == ("no error",)


def output_of(kafka: KafkaService) -> tuple[str, Any]:
    """A topic, and a query that writes to it."""
    topic = create_topic(kafka.bootstrap_servers, f"k{uuid.uuid4().hex[:10]}-out")
    sink = KafkaSink(name=topic, bootstrap_servers=kafka.bootstrap_servers, topic=topic)

    def query(frame: DataFrame, checkpoint: str) -> Any:
        each = exactly_once(sink, checkpoint_location=checkpoint, write_by="tasks")
        return frame.select("key", "value").writeStream.foreachBatch(each)

    return topic, query


def test_a_query_with_exactly_once_survives_each_kill_and_fences_a_process_that_outlived_its_server(
    kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    topic, query = output_of(kafka)
    outcome = kill_loop(
        lambda: committed(kafka.bootstrap_servers, topic).elements(),
        query=query,
        directory=tmp_path / "loop",
        source=KafkaTopic(kafka.bootstrap_servers, f"{topic}-in"),
        rows=80,
        kills=4,
        crash_points=["task.prepared", "driver.decided", "driver.confirmed", "driver.committing"],
        spark={"spark.jars": ",".join(map(str, spark_kafka_jars()))},
        connect=True,
    )
    add_summary(str(outcome))
    outcome.require_exactly_once(in_order=True)
    assert [kill.partition(" ")[2] for kill in outcome.kills] == ["", "(worker)", "(server)", "(client)"]
    assert outcome.zombies == ("FencedError",)


def test_a_query_whose_client_is_killed_continues_and_is_taken_over_on_the_same_server(
    kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    topic, query = output_of(kafka)
    outcome = kill_loop(
        lambda: committed(kafka.bootstrap_servers, topic).elements(),
        query=query,
        directory=tmp_path / "loop",
        rows=60,
        kills=2,
        moments=[Moment.DURING, Moment.AFTER],
        victims=[Victim.CLIENT],
        spark={"spark.jars": ",".join(map(str, spark_kafka_jars()))},
        connect=True,
    )
    add_summary(str(outcome))
    outcome.require_exactly_once()
    assert outcome.missed == ()
    assert len(list((tmp_path / "loop").glob("server-*.log"))) == 1
