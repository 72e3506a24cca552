"""`twopc migrate rollback`: the old sink takes the checkpoint back; no batch is duplicated and none is skipped."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.migrate.support import OldPipeline, StopError
from tests.live.migrate.test_cutover import write_half_of_batch_1
from twopc import ResumeAt
from twopc.integration.migrate import TakeOver
from twopc.integration.spark import intercepted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def handed_over(old_kafka: LocalOldKafka, kafka: KafkaService, tmp_path: Path, spark: SparkSession) -> OldPipeline:
    """A pipeline whose batch 1 is half-written, and handed over."""
    pipeline = OldPipeline(old_kafka.bootstrap_servers, tmp_path, servers=kafka.bootstrap_servers)
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply")
    return pipeline


@pytest.mark.whole
def test_a_rollback_is_exact_before_the_new_query_has_ever_started(
    handed_over: OldPipeline, spark: SparkSession
) -> None:
    assert handed_over.command("rollback")["handover"]["kind"] == "rest"
    handed_over.run_old(spark)
    assert handed_over.visible() == Counter(handed_over.given)


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        ("driver.prepared", "rest"),
        pytest.param("driver.decided", "whole", marks=pytest.mark.whole),
        pytest.param("driver.committed", "whole", marks=pytest.mark.whole),
    ],
)
def test_a_rollback_from_the_half_written_batch_itself_is_exact(
    point: str, kind: str, handed_over: OldPipeline, spark: SparkSession
) -> None:
    handed_over.fail_new_at(spark, point)
    found = handed_over.command("rollback")
    assert (found["handover"]["batch_id"], found["handover"]["kind"]) == (1, kind)
    assert handed_over.command("rollback") == found, "a repeated rollback should return the same result"
    handed_over.run_old(spark)
    assert handed_over.visible() == Counter(handed_over.given)


@pytest.mark.whole
@pytest.mark.parametrize(("point", "kind"), [("driver.prepared@2", "nothing"), ("driver.decided@2", "whole")])
def test_a_rollback_from_a_later_batch_is_exact(
    point: str, kind: str, handed_over: OldPipeline, spark: SparkSession
) -> None:
    handed_over.fail_new_at(spark, point)
    assert handed_over.command("rollback")["handover"]["kind"] == kind
    handed_over.run_old(spark)
    assert handed_over.visible() == Counter(handed_over.given)


@pytest.mark.whole
def test_a_rollback_from_a_finished_batch_and_another_cutover_are_exact(
    handed_over: OldPipeline, spark: SparkSession
) -> None:
    handed_over.run_new(spark)
    assert handed_over.command("rollback")["handover"]["kind"] == "nothing"
    handed_over.feed(40)
    sink = handed_over.sink()

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch.limit(7), batch_id)
        raise StopError

    handed_over.fail(spark, write)
    assert handed_over.visible().total() == 107
    assert handed_over.cut_over("--apply")["handover"]["kind"] == "rest"
    assert handed_over.command("rollback")["handover"]["kind"] == "rest", (
        "a rollback before the new query has restarted"
    )
    batch_id = handed_over.cut_over("--apply")["handover"]["batch_id"]
    handed_over.run_new(spark, override=ResumeAt(batch_id))
    assert handed_over.visible() == Counter(handed_over.given)


@pytest.mark.whole
def test_the_old_query_does_not_start_without_a_rollback(handed_over: OldPipeline, spark: SparkSession) -> None:
    """The new query has written batch 2, and Spark has not recorded it. The old sink would write it again."""
    handed_over.fail_new_at(spark, "driver.committed@2")
    before = handed_over.visible()
    old = intercepted(handed_over.sink(), TakeOver(handed_over.new_sink()))
    assert "twopc migrate rollback" in handed_over.fail(spark, old, max_offsets=40)
    assert handed_over.visible() == before
    handed_over.command("rollback")
    handed_over.run_old(spark)
    assert handed_over.visible() == Counter(handed_over.given)


@pytest.mark.whole
def test_a_running_new_query_is_fenced_by_the_rollback(handed_over: OldPipeline, spark: SparkSession) -> None:
    fenced = []

    def roll_back_meanwhile(batch_id: int) -> None:
        if batch_id == 2:
            fenced.append(handed_over.command("rollback"))

    assert "FencedError" in handed_over.fail_new(spark, before=roll_back_meanwhile)
    assert fenced
    handed_over.command(
        "rollback"
    )  # ends the transactions that the fenced query has left open, which would hold readers back
    handed_over.run_old(spark)
    assert handed_over.visible() == Counter(handed_over.given)
