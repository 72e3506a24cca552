"""A batch was handed over, but the new query runs without ``take_over``. The query is refused, and no row is duplicated."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.migrate.support import OldPipeline
from tests.live.migrate.test_cutover import write_half_of_batch_1
from twopc import AdoptQuery
from twopc.integration.spark import exactly_once

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


def fail_without_take_over(pipeline: OldPipeline, spark: SparkSession, **settings: Any) -> str:
    each = exactly_once(pipeline.new_sink(), checkpoint_location=str(pipeline.checkpoint), **settings)
    with closing(each):
        return pipeline.fail(spark, each, max_offsets=40)


@pytest.mark.whole
def test_a_new_query_without_take_over_is_refused_and_writes_nothing(
    kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    """Caught mutation: ``exactly_once`` does not look for a hand-over. In that case, the rows of batch 1 are duplicated."""
    pipeline = OldPipeline(kafka.bootstrap_servers, tmp_path)
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    before = pipeline.visible()
    pipeline.cut_over("--apply")
    message = fail_without_take_over(pipeline, spark, override=AdoptQuery(pipeline.query_id))
    assert "another sink began to write batch 1" in message
    assert "TakeOver(sink)" in message
    assert pipeline.visible() == before
    pipeline.fail_new_at(spark, "driver.decided")  # this run passes TakeOver; Spark does not record the batch
    assert "another sink began to write batch 1" in fail_without_take_over(pipeline, spark)
    pipeline.run_new(spark)
    pipeline.feed(20)
    with closing(exactly_once(pipeline.new_sink(), checkpoint_location=str(pipeline.checkpoint))) as each:
        pipeline.run(spark, each)  # once the batch is done, TakeOver may be removed
    assert pipeline.visible() == Counter(pipeline.given)
    pipeline.command("rollback")
    pipeline.feed(20)
    assert "has returned this checkpoint to the old sink" in fail_without_take_over(pipeline, spark)
    assert pipeline.visible().total() == 120
    pipeline.run_old(spark)
    assert pipeline.visible() == Counter(pipeline.given)
