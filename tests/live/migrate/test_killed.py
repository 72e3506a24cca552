"""SIGKILL ends the new query during the handed-over batch, and the commands, at each step.

A second run makes the output exact.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.live.migrate.support import FOR_OLD_BROKERS, OldPipeline
from tests.live.migrate.test_cutover import write_half_of_batch_1
from twopc import AdoptQuery
from twopc.crash_points import POINTS
from twopc.integration.services.jars import spark_kafka_jars
from twopc.testing.kill_loop import Kill, KillLoop, Moment
from twopc.testing.kill_loop.records import Reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.services import KafkaService
    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

_TIMEOUT_S: Final = 120
UP_TO_THE_DECISION: Final = POINTS[: POINTS.index("driver.decided") + 1]
#: A program that runs the command and is killed by SIGKILL: at a crash point, or at a step of writing the command's
#: file.
_COMMAND: Final = """
import os, signal, sys
from twopc.testing.crash_points import arm_from_environment
arm_from_environment()
step, link = os.environ["KILLED_AT"], os.link

def killed_link(source, target):
    if "handover-" in str(target) and step == "unlinked":
        os.kill(os.getpid(), signal.SIGKILL)
    link(source, target)
    if "handover-" in str(target) and step == "linked":
        os.kill(os.getpid(), signal.SIGKILL)

os.link = killed_link
from twopc.integration.cli import app
app(sys.argv[1:])
"""
_FILE_STEPS: Final = ("unlinked", "linked")


@pytest.fixture
def pipeline(old_kafka: LocalOldKafka, kafka: KafkaService, tmp_path: Path, spark: SparkSession) -> OldPipeline:
    """Batch 1 is half-written."""
    pipeline = OldPipeline(old_kafka.bootstrap_servers, tmp_path, servers=kafka.bootstrap_servers)
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    return pipeline


class Fed:
    """The kill loop's source, which has all its records from the start."""

    def __init__(self, pipeline: OldPipeline) -> None:
        self._options = {
            "kafka.bootstrap.servers": pipeline.source_servers,
            "subscribe": pipeline.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "40",
        }

    def feed(self, numbers: range) -> None:
        """Nothing."""

    def reader(self, batch_rows: int) -> Reader:
        del batch_rows
        columns = ("CAST(0 AS BIGINT) AS number", "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        return Reader(format="kafka", options=self._options, columns=columns)


def new_query(pipeline: OldPipeline, direct: Any) -> Callable[[DataFrame, str], DataStreamWriter]:
    servers, name, topic, query_id = pipeline.servers, pipeline.name, pipeline.topic, pipeline.query_id

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        from twopc.integration.migrate import TakeOver  # noqa: PLC0415 - imported in the query's own process
        from twopc.integration.spark import exactly_once  # noqa: PLC0415 - imported in the query's own process
        from twopc.sinks.kafka import KafkaSink  # noqa: PLC0415 - imported in the query's own process

        sink = KafkaSink(name=name, bootstrap_servers=servers, topic=topic)
        each = exactly_once(sink, interceptors=[TakeOver(sink)], override=AdoptQuery(query_id), write_by=direct)
        return frame.select("key", "value").writeStream.foreachBatch(each)

    return query


@pytest.mark.parametrize(
    ("direct", "points"),
    [
        pytest.param("tasks", ["task.prepared"], marks=pytest.mark.whole),
        pytest.param("tasks", UP_TO_THE_DECISION, marks=pytest.mark.whole),
        pytest.param("driver", [point for point in UP_TO_THE_DECISION if "task" not in point], marks=pytest.mark.whole),
        # After the decision, a single restart completes the batch, and Spark records it: one case for each point.
        *(
            pytest.param(direct, [point], marks=pytest.mark.whole)
            for direct in ("tasks", "driver")
            for point in ("driver.committing", "driver.committed", "driver.swept")
        ),
    ],
)
def test_the_new_query_is_killed_in_the_handed_over_batch(
    direct: str, points: list[str], pipeline: OldPipeline, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    """The kills follow the protocol, so that each restart receives the same batch again.

    Spark records it after the last kill.
    """
    pipeline.cut_over("--apply")
    noted: dict[str, bool] = {}

    def killed(step: str) -> None:
        noted[step] = pipeline.commit_file(1).exists()

    loop = KillLoop(
        read=list,
        query=new_query(pipeline, direct),
        source=Fed(pipeline),
        directory=tmp_path / "loop",
        checkpoint=pipeline.checkpoint,
        rows=10 * len(points) + 10,  # the loop feeds no rows, but each kill needs its share of this number
        batch_rows=1,
        spark={**FOR_OLD_BROKERS, "spark.jars": ",".join(map(str, spark_kafka_jars()))},
        written=int,
        on_kill=killed,
    )
    loop.run([Kill(moment=Moment.POINT, point=point) for point in points])
    add_summary(f"killed at {', '.join(loop.kills)}; not reached: {', '.join(loop.missed) or 'none'}")
    assert noted
    assert not any(noted.values()), "each kill should come before Spark records the batch as finished"
    assert pipeline.visible() == Counter(pipeline.given)
    if len(points) == 3:
        assert len(loop.kills) == 3


def killed_command(pipeline: OldPipeline, name: str, *words: str, at: str) -> None:
    """Run ``twopc migrate …`` and see it end by SIGKILL."""
    given = ["--bootstrap-servers", pipeline.servers, "--sink", pipeline.name, "--checkpoint", str(pipeline.checkpoint)]
    fault = "" if at in _FILE_STEPS else f"{at}=kill"
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "migrate", name, *given, *words],
        env={**os.environ, "KILLED_AT": at, "TWOPC_CRASH_POINTS": fault},
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == -signal.SIGKILL, (at, done.stdout, done.stderr)


@pytest.mark.whole
def test_a_killed_cutover_can_be_repeated(pipeline: OldPipeline, spark: SparkSession) -> None:
    own = pipeline.checkpoint / "twopc"
    killed_command(pipeline, "cutover", "--topic", pipeline.topic, "--apply", at="unlinked")
    assert not list(own.glob("handover-*.json"))
    assert "contains no hand-over" in pipeline.fail_new(spark), "a half-done cut-over must leave no hand-over"
    killed_command(pipeline, "cutover", "--topic", pipeline.topic, "--apply", at="linked")
    recorded = [file.name for file in own.glob("handover-*.json")]
    assert len(recorded) == 1
    assert pipeline.cut_over("--apply")["was_recorded"] is True
    assert [file.name for file in own.glob("handover-*.json")] == recorded
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)


@pytest.mark.whole
@pytest.mark.parametrize("stopped", [pytest.param("driver.prepared", marks=pytest.mark.whole), "driver.decided"])
def test_a_killed_rollback_can_be_repeated(stopped: str, pipeline: OldPipeline, spark: SparkSession) -> None:
    """The kills come at each step of the command's recovery, and at each step of writing its file.

    Meanwhile, the old query must not start.
    """
    pipeline.cut_over("--apply")
    pipeline.fail_new_at(spark, stopped, write_by="tasks")
    steps = ["driver.inspected", "driver.fenced", "driver.acquired", "driver.recovered", *_FILE_STEPS]
    if stopped == "driver.decided":
        steps.insert(3, "driver.committing")
    for step in steps:
        killed_command(pipeline, "rollback", at=step)
    found = pipeline.command("rollback")
    assert found["handover"]["kind"] == ("whole" if stopped == "driver.decided" else "rest")
    pipeline.run_old(spark)
    assert pipeline.visible() == Counter(pipeline.given)
