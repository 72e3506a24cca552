"""`twopc migrate cutover`: the new sink finishes a batch that the old sink partly wrote, and no row is lost or duplicated."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as sf

from tests.live.migrate.support import OldPipeline, StopError
from twopc import AdoptQuery, exactly_once
from twopc.integration.migrate import TakeOver
from twopc.integration.migrate.unfinished import DryRunError
from twopc.sinks.kafka.handle import task_id

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.services.old_kafka import LocalOldKafka

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


@pytest.fixture
def pipeline(old_kafka: LocalOldKafka, kafka: KafkaService, tmp_path: Path) -> OldPipeline:
    """The source stays on 0.10, and the output is on a current cluster. Most teams migrate in this way."""
    return OldPipeline(old_kafka.bootstrap_servers, tmp_path, servers=kafka.bootstrap_servers)


def write_half_of_batch_1(pipeline: OldPipeline, spark: SparkSession, *, third: int = 0) -> None:
    """Batch 1 is partly written in each partition of the output, and the query ends."""
    sink = pipeline.sink()

    def write(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            sink(batch, batch_id)
            return
        sink(batch.where(sf.crc32("value") % 3 != third), batch_id)
        raise StopError

    pipeline.fail(spark, write, max_offsets=40)


@pytest.mark.whole
def test_a_half_written_batch_is_completed_by_comparing_its_rows_with_the_output(
    pipeline: OldPipeline, spark: SparkSession
) -> None:
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    before, batch = pipeline.visible(), pipeline.of_batch(1)
    written = sum(before[value] for value in batch)
    assert 0 < written < len(batch)
    dry = pipeline.cut_over()
    assert (dry["handover"]["batch_id"], dry["source_records"], dry["output_records"]) == (1, len(batch), written)
    assert dry["recorded"] is None
    assert not (pipeline.checkpoint / "twopc").exists()
    recorded = pipeline.cut_over("--apply")["recorded"]
    message = pipeline.fail_new(spark, dry_run=True)
    assert (
        f"batch 1 has {len(batch)} rows: {written} in the output, {len(batch) - written} still to be written" in message
    )
    assert pipeline.visible() == before
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)
    assert recorded is not None


@pytest.mark.whole
def test_the_command_may_be_repeated(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(60)
    write_half_of_batch_1(pipeline, spark)
    first = pipeline.cut_over("--apply")
    again = pipeline.cut_over("--apply")
    assert (again["recorded"], again["was_recorded"]) == (first["recorded"], True)


@pytest.mark.whole
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("driver.prepared", marks=pytest.mark.whole),
        pytest.param("driver.deciding", marks=pytest.mark.whole),
        "driver.decided",
        pytest.param("driver.committing", marks=pytest.mark.whole),
    ],
)
def test_a_crash_in_the_first_batch_changes_nothing(point: str, pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(80)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply")
    pipeline.fail_new_at(spark, point)
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)


@pytest.mark.whole
def test_equal_rows_and_earlier_duplicates_are_counted(pipeline: OldPipeline, spark: SparkSession) -> None:
    """Only seven different rows. The old sink duplicated batch 0, and tried batch 1 twice."""
    sink, attempts = pipeline.sink(), Counter[int]()
    pipeline.feed(100, values=7)

    def write(batch: DataFrame, batch_id: int) -> None:
        attempts[batch_id] += 1
        if batch_id == 0:
            sink(batch, batch_id)
            if attempts[0] == 1:
                raise StopError
            return
        sink(
            batch.where(
                sf.col("value").cast("string").isin(["v00004", "v00005"] if attempts[1] == 1 else ["v00003", "v00004"])
            ),
            batch_id,
        )
        raise StopError

    for _ in range(3):
        pipeline.fail(spark, write, max_offsets=40)
    assert attempts == {0: 2, 1: 2}
    before = pipeline.visible()
    first, second = Counter(pipeline.of_batch(0)), Counter(pipeline.of_batch(1))
    of_second = before - first - first
    assert any(count > second[value] for value, count in of_second.items()), (
        "some rows of batch 1 should be visible twice"
    )
    pipeline.cut_over("--apply")
    message = pipeline.fail_new(spark)
    assert "rows match records that were written up to" in message
    assert "--clock-skew-ms" in message
    assert pipeline.visible() == before
    assert pipeline.cut_over("--apply", "--clock-skew-ms", "0")["was_recorded"] is False
    message = pipeline.fail_new(spark, dry_run=True)
    surplus = (of_second - second).total()
    assert f"{surplus} are duplicates from earlier attempts" in message
    pipeline.run_new(spark)
    rest_of_input = Counter(pipeline.given) - first - second
    assert pipeline.visible() == first + first + (second | of_second) + rest_of_input


@pytest.mark.whole
def test_rows_that_differ_in_each_attempt_are_recognized_by_their_key(
    pipeline: OldPipeline, spark: SparkSession
) -> None:
    pipeline.feed(100)
    as_json = "to_json(named_struct('id', CAST(value AS STRING), 'noise', uuid())) AS value"
    pipeline.columns = ("key", as_json)
    write_half_of_batch_1(pipeline, spark)
    before = pipeline.visible()
    pipeline.cut_over("--apply")
    assert "records do not match any row of the batch" in pipeline.fail_new(spark)
    assert pipeline.visible() == before
    counted = pipeline.cut_over("--apply", "--key", "json:$.id")
    assert counted["unidentified"] == 0
    pipeline.run_new(spark)
    assert not before - pipeline.visible(), "rows that were visible before are missing"
    assert pipeline.visible_ids() == Counter(pipeline.given)


@pytest.mark.whole
def test_a_key_that_is_not_unique_is_refused(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply", "--key", "key")
    assert "belong to different rows" in pipeline.fail_new(spark)


@pytest.mark.whole
def test_a_writer_that_keeps_writing_is_detected(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(60)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply")
    pipeline.write_directly("late")
    assert "1 record was written" in pipeline.fail_new(spark)
    pipeline.cut_over("--apply")
    assert "1 record does not match any row of the batch" in pipeline.fail_new(spark)
    pipeline.cut_over("--apply", "--other-writers")
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter([*pipeline.given, "late"])


@pytest.mark.whole
def test_without_the_command_the_query_does_not_start(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(60)
    write_half_of_batch_1(pipeline, spark)
    assert "contains no hand-over" in pipeline.fail_new(spark)


@pytest.mark.whole
def test_an_old_query_that_ran_in_the_meantime_is_detected(pipeline: OldPipeline, spark: SparkSession) -> None:
    """The old query has finished the batch that was handed over, and begun the next one."""
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply")
    sink = pipeline.sink()

    def write(batch: DataFrame, batch_id: int) -> None:
        sink(batch, batch_id)
        if batch_id == 2:
            raise StopError

    pipeline.fail(spark, write, max_offsets=40)
    before = pipeline.visible()
    assert "Spark has recorded batch 1 as done, but the new query has not decided it" in pipeline.fail_new(spark)
    assert pipeline.visible() == before
    assert "--old-query-finished 1" in pipeline.refused("cutover", "--topic", pipeline.topic, "--apply")
    assert "--old-query-finished 1" in pipeline.refused("rollback")
    pipeline.cut_over("--old-query-finished", "1", "--apply")
    pipeline.run_new(spark)
    assert pipeline.visible() == before, "all rows of batch 2 were already visible"


@pytest.mark.whole
@pytest.mark.parametrize("is_passed_on", [True, False], ids=["TakeOver", "without TakeOver"])
def test_a_half_written_batch_whose_error_the_function_caught_is_not_skipped(
    is_passed_on: bool,  # noqa: FBT001 - a case
    pipeline: OldPipeline,
    spark: SparkSession,
) -> None:
    """Spark records the batch as done. Another cut-over, or ``AdoptQuery`` alone, would lose the missing rows of the batch."""
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply")
    before, sink = pipeline.visible(), pipeline.new_sink()
    taken = [TakeOver(sink, dry_run=True)] if is_passed_on else []
    each = exactly_once(sink, interceptors=taken, override=AdoptQuery(pipeline.query_id))

    def write(batch: DataFrame, batch_id: int) -> None:
        try:
            each(batch, batch_id)
        except DryRunError:
            assert batch_id == 1

    def write_nothing(batch: DataFrame, batch_id: int) -> None:
        if batch_id > 1:
            each(batch, batch_id)

    with closing(each):
        error = pipeline.fail(spark, write if is_passed_on else write_nothing, max_offsets=40)
    assert "Spark has recorded batch 1 as done, but the new query has not decided it" in error
    assert "--old-query-finished 1" in pipeline.refused("cutover", "--topic", pipeline.topic, "--apply")
    assert "--old-query-finished 1" in pipeline.refused("rollback")
    assert pipeline.visible() == before
    for directory, last in (("offsets", 1), ("commits", 0)):  # as the error says
        for file in (pipeline.checkpoint / directory).iterdir():
            if int(file.name.removesuffix(".crc").lstrip(".")) > last:
                file.unlink()
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)


def test_a_restored_checkpoint_is_detected(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply")
    for directory in ("offsets", "commits"):
        for name in ("1", ".1.crc", "0", ".0.crc"):
            (pipeline.checkpoint / directory / name).unlink(missing_ok=True)
    assert "the checkpoint was restored" in pipeline.fail_new(spark, max_offsets=30)


def test_a_half_written_batch_that_spark_has_planned_again_is_refused(
    pipeline: OldPipeline, spark: SparkSession
) -> None:
    """Caught mutation: the message advises another cut-over. In that case, rows of the first plan are duplicated."""
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    before = pipeline.visible()
    pipeline.cut_over("--apply")
    first_plan = {name: (pipeline.checkpoint / "offsets" / name).read_bytes() for name in ("1", ".1.crc")}
    for name in first_plan:
        (pipeline.checkpoint / "offsets" / name).unlink()
    error = pipeline.fail_new(spark, max_offsets=10)
    assert "Spark has planned it again" in error and "Do not run `twopc migrate cutover`" in error
    assert "Spark has planned it again" in pipeline.refused("cutover", "--topic", pipeline.topic, "--apply")
    assert pipeline.visible() == before
    for name, content in first_plan.items():
        (pipeline.checkpoint / "offsets" / name).write_bytes(content)
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)


@pytest.mark.whole
def test_no_row_is_left_out_after_a_finished_batch(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(50)
    pipeline.run(spark, pipeline.sink())
    pipeline.feed(50)
    found = pipeline.cut_over("--apply")
    assert found["handover"]["kind"] == "nothing"
    pipeline.write_directly("late")
    assert "1 record was written" in pipeline.fail_new(spark)
    pipeline.cut_over("--apply")
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter([*pipeline.given, "late"])


@pytest.mark.whole
def test_a_checkpoint_that_contains_only_some_of_the_batches_is_refused(
    pipeline: OldPipeline, spark: SparkSession
) -> None:
    """With asyncProgressTrackingEnabled, the output contains batches that the checkpoint does not record."""
    writer = pipeline.frame(spark, None).writeStream.format("kafka").option("topic", pipeline.topic)
    writer = writer.option("kafka.bootstrap.servers", pipeline.servers).option("asyncProgressTrackingEnabled", "true")
    writer = writer.option("asyncProgressTrackingCheckpointIntervalMs", "2000")
    query = writer.option("checkpointLocation", pipeline.location).start()
    try:
        while not has_gap(pipeline):
            pipeline.feed(1)
            query.processAllAvailable()
    finally:
        query.stop()
    assert pipeline.visible() == Counter(pipeline.given)
    assert "records only some batches" in pipeline.refused("cutover", "--topic", pipeline.topic, "--apply")


def has_gap(pipeline: OldPipeline) -> bool:
    found = sorted(int(file.name) for file in (pipeline.checkpoint / "offsets").iterdir() if file.name.isdecimal())
    return len(found) > 1 and found[-1] - found[-2] > 1


@pytest.mark.whole
def test_a_batch_that_the_new_query_has_decided_is_not_handed_over_again(
    pipeline: OldPipeline, spark: SparkSession
) -> None:
    """A runbook may repeat the command before each start."""
    pipeline.feed(80)
    write_half_of_batch_1(pipeline, spark)
    recorded = pipeline.cut_over("--apply")["recorded"]
    pipeline.fail_new_at(spark, "driver.committing")
    assert "Start the new query" in pipeline.refused("cutover", "--topic", pipeline.topic, "--apply")
    assert [str(file) for file in (pipeline.checkpoint / "twopc").glob("handover-*.json")] == [recorded]
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)


@pytest.mark.whole
@pytest.mark.parametrize("other_writers", [(), ("--other-writers",)], ids=["alone", "other writers"])
def test_an_old_query_that_wrote_behind_the_new_querys_open_transaction_is_detected(
    other_writers: tuple[str, ...], pipeline: OldPipeline, spark: SparkSession
) -> None:
    """Caught mutation: only the check before the start. The transaction hides the rows, and the start writes them again."""
    pipeline.feed(100)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply", *other_writers)
    before = pipeline.visible()
    missing = sorted((Counter(pipeline.of_batch(1)) - before).elements())
    killed = Producer(  # a task of the new query, which was killed
        {
            "bootstrap.servers": pipeline.servers,
            "transactional.id": task_id(pipeline.name, 0, "worker", 0),
            "log_level": 0,
        }
    )
    killed.init_transactions(60)
    killed.begin_transaction()
    for number in range(4):
        killed.produce(pipeline.topic, missing[0], partition=number)
    assert killed.flush(60) == 0
    for value in missing:  # the old query was started again, and was killed, too
        pipeline.write_directly(value, key=f"k{int(value[1:]) % 23}")
    assert pipeline.visible() == before, "the open transaction should hide these rows"
    error = pipeline.fail_new(spark)
    assert f"{len(missing)} record" in error and "Nothing was written" in error
    assert pipeline.visible() == before + Counter(missing)
    pipeline.cut_over("--apply", *other_writers)
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)


@pytest.mark.whole
def test_other_writers_go_on_writing_while_the_new_query_starts(pipeline: OldPipeline, spark: SparkSession) -> None:
    """Only a row of the batch shows that the old query is still running."""
    pipeline.feed(60)
    write_half_of_batch_1(pipeline, spark)
    pipeline.cut_over("--apply", "--other-writers")
    pipeline.write_directly("another")
    missing = min(Counter(pipeline.given) - pipeline.visible())
    assert missing in pipeline.of_batch(1)
    pipeline.write_directly(missing, key=f"k{int(missing[1:]) % 23}")
    before = pipeline.visible()
    assert "1 record identical to a row of batch 1 was written after the hand-over" in pipeline.fail_new(spark)
    assert pipeline.visible() == before
    pipeline.cut_over("--apply", "--other-writers")
    pipeline.write_directly("yet another")
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter([*pipeline.given, "another", "yet another"])


@pytest.mark.whole
def test_other_writers_go_on_writing_after_a_finished_batch(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(50)
    pipeline.run(spark, pipeline.sink())
    pipeline.feed(50)
    pipeline.cut_over("--apply", "--other-writers")
    pipeline.write_directly("another")
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter([*pipeline.given, "another"])


@pytest.mark.whole
def test_the_rows_that_select_produces_are_compared_with_the_output(pipeline: OldPipeline, spark: SparkSession) -> None:
    """With other writers, no row that the old sink has written would equal a record, and all would be written again."""
    pipeline.feed(100)
    old, sink = pipeline.columns, pipeline.new_sink()
    pipeline.columns = made = ("key", "upper(CAST(value AS STRING)) AS value")
    write_half_of_batch_1(pipeline, spark)
    pipeline.columns = old
    pipeline.cut_over("--apply", "--other-writers")
    pipeline.run_new(spark, select={sink.name: made})
    assert pipeline.visible() == Counter(value.upper() for value in pipeline.given)


def test_a_batch_that_sparks_own_sink_wrote_in_part_is_completed(pipeline: OldPipeline, spark: SparkSession) -> None:
    pipeline.feed(60)
    with pytest.raises(Exception, match="the task fails"):
        pipeline.run_with_sparks_sink(spark, fails=True)
    written = pipeline.visible().total()
    assert 0 < written < 60
    pipeline.cut_over("--apply")
    pipeline.run_new(spark)
    assert pipeline.visible() == Counter(pipeline.given)
    pipeline.require_order()
