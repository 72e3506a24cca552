"""A Kafka sink's weaker guarantees: exactly which rows a failure duplicates.

A switch between guarantees loses no additional rows.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.pipeline import Tasks, create_topic, record_batch
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import Play, crash, playing, work_of
from tests.live.spark_support import KILLED, Pipeline, spark
from tests.reader import committed
from tests.tasks import attempt_of, prepare
from twopc.attempt import Attempt, TaskAttempt
from twopc.errors import BadRecordError
from twopc.settings import Settings
from twopc.sinks.kafka import KafkaSink, librdkafka
from twopc.sinks.kafka.plain_writer import _idle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.live.services import KafkaService
    from twopc.coordinator import Coordinator

__all__ = ["spark"]

WEAKER = ["AT_LEAST_ONCE", "NONE"]
BEFORE = ["task.prepared", "driver.prepared", "driver.confirmed", "driver.deciding"]
AFTER = ["driver.decided", "driver.committed", "driver.swept"]
_SAMPLE = {"driver.confirmed", "driver.decided"}


def each(points: list[str]) -> list[Any]:
    """Return a sample of the points in ``make test``, and all of them in ``make whole``."""
    return [pytest.param(point, marks=() if point in _SAMPLE else pytest.mark.whole) for point in points]


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path / "checkpoint") as play:
        yield play


def driver(play: Play, guarantee: str, **options: Any) -> Coordinator:
    """A new run, whose guarantee differs from the previous run's."""
    play.sink = replace(play.sink, guarantee=guarantee, options={**play.sink.options, **options})
    play.forget_worker()
    return play.driver(Settings(max_attempts=1))


def write(coordinator: Coordinator, play: Play, *batches: int) -> None:
    for batch in batches:
        coordinator.process(play.batch(batch), Tasks(play, rows_of(batch)))


@pytest.mark.parametrize("native", [True, False], ids=["native", "confluent"])
def test_without_a_failure_each_row_is_visible_once_before_the_decision_and_in_no_transaction(
    play: Play, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    monkeypatch.setattr("twopc.sinks.kafka.producer.librdkafka.library", librdkafka.library if native else lambda: None)
    run = driver(play, "AT_LEAST_ONCE")
    write(run, play, 0)
    work = work_of(play, 1, driver_epoch=run.log_epoch)
    for partition, rows in enumerate(rows_of(1)):
        assert prepare(play.sink, attempt_of(work, play.name, partition), [record_batch(rows)]) is None
    assert play.visible() == seen(2)  # the second batch is not decided
    assert play.open_transactions() == ()
    assert [task.handles for decision in play.decisions() for task in decision.tasks] == [{}, {}]
    assert len([key for key in _idle if key[1] == play.sink.place]) == 1  # one producer served all tasks
    run.close()
    assert not [key for key in _idle if key[1] == play.sink.place]


@pytest.mark.parametrize("point", each(BEFORE))
def test_a_driver_that_dies_before_its_decision_duplicates_only_the_undecided_batch(point: str, play: Play) -> None:
    run = driver(play, "AT_LEAST_ONCE")
    write(run, play, 0)
    crash(run, play, 1, rows_of(1), point)
    visible = play.visible() - seen(1)
    assert visible == (Counter(rows_of(1)[0]) if point == "task.prepared" else seen(2) - seen(1))
    write(driver(play, "AT_LEAST_ONCE"), play, 1, 2)
    assert play.visible() == seen(3) + visible


@pytest.mark.parametrize("point", each(AFTER))
def test_a_driver_that_dies_after_its_decision_duplicates_nothing(point: str, play: Play) -> None:
    run = driver(play, "AT_LEAST_ONCE")
    crash(run, play, 0, rows_of(0), point)
    write(driver(play, "AT_LEAST_ONCE"), play, 0, 1)
    assert play.visible() == seen(2)


@pytest.mark.parametrize("guarantee", ["AT_LEAST_ONCE", pytest.param("NONE", marks=pytest.mark.whole)])
@pytest.mark.parametrize("point", each([*BEFORE, *AFTER]))
def test_a_run_with_a_weaker_guarantee_completes_a_batch_that_an_exact_run_left_unfinished(
    point: str, guarantee: str, play: Play
) -> None:
    run = driver(play, "EXACTLY_ONCE")
    write(run, play, 0)
    crash(run, play, 1, rows_of(1), point)
    weaker = driver(play, guarantee)
    write(weaker, play, 1, 2)
    weaker.close()
    assert play.open_transactions() == ()
    assert play.visible() == seen(3)


@pytest.mark.parametrize("guarantee", WEAKER)
def test_lost_transactions_are_repaired_in_transactions_even_under_another_guarantee(
    guarantee: str, play: Play
) -> None:
    """Fails with an AssertionError if a repair has no handle: the decision would not be complete."""
    crash(driver(play, "EXACTLY_ONCE"), play, 0, rows_of(0), "driver.decided")
    lost, kept = play.decided(0)
    assert play.end(kept, commit=True) == "NONE"
    play.fence(lost.transactional_id)
    write(driver(play, guarantee), play, 0)
    assert play.visible() == seen(1)


@pytest.mark.parametrize("guarantee", WEAKER)
def test_a_batch_that_has_lost_all_of_its_transactions_is_written_again_with_the_present_guarantee(
    guarantee: str, play: Play
) -> None:
    crash(driver(play, "EXACTLY_ONCE"), play, 0, rows_of(0), "driver.decided")
    for lost in play.decided(0):
        play.fence(lost.transactional_id)
    weaker = driver(play, guarantee)
    write(weaker, play, 0)
    weaker.close()
    assert play.visible() == seen(1)
    assert [bool(task.handles) for decision in play.decisions() for task in decision.tasks] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("point", each([*BEFORE, *AFTER]))
def test_an_exact_run_after_one_with_a_weaker_guarantee_duplicates_at_most_the_undecided_batch(
    point: str, play: Play
) -> None:
    crash(driver(play, "AT_LEAST_ONCE"), play, 0, rows_of(0), point)
    left = play.visible()
    exact = driver(play, "EXACTLY_ONCE")
    write(exact, play, 0, 1)
    assert play.visible() == seen(2) + (left if point in BEFORE else Counter())
    crash(exact, play, 2, rows_of(2), "driver.confirmed")
    write(driver(play, "EXACTLY_ONCE"), play, 2)
    assert play.visible() - left == seen(3) - (Counter() if point in BEFORE else seen(1))


def test_under_the_guarantee_none_no_acknowledgement_is_awaited_and_a_closing_driver_sends_the_rest(play: Play) -> None:
    """The client lingers, so a batch that waited for acknowledgements would not end before its rows are visible."""
    run = driver(play, "NONE", **{"kafka.linger.ms": "600000"})
    write(run, play, 0)
    assert play.visible() == Counter()
    run.close()
    assert play.visible() == seen(1)


def test_under_the_guarantee_none_any_number_of_sinks_in_a_process_lose_no_rows(kafka: KafkaService) -> None:
    """The client lingers. The producer that had to make room for the last sink's was dropped with its unsent rows."""
    topic = create_topic(kafka.bootstrap_servers, f"n{uuid.uuid4().hex[:10]}", 1)
    sinks = [
        KafkaSink(
            name=f"{topic}-{number}",
            bootstrap_servers=kafka.bootstrap_servers,
            topic=topic,
            guarantee="NONE",
            options={"kafka.linger.ms": "60000"},
        )
        for number in range(17)
    ]
    attempt = TaskAttempt(
        query_id="q", batch_id=0, attempt=Attempt(1, 1), partition=0, driver_epoch=1, committed_through=-1
    )
    for number, sink in enumerate(sinks):
        assert prepare(sink, attempt, [record_batch([str(number)])]) is None
    for sink in sinks:
        sink.release(1)
    assert committed(kafka.bootstrap_servers, topic) == Counter(str(number) for number in range(17))


def test_the_guarantee_at_least_once_awaits_acknowledgements_even_with_a_long_linger(play: Play) -> None:
    """Fails without the flush."""
    write(driver(play, "AT_LEAST_ONCE", **{"kafka.linger.ms": "600000"}), play, 0)
    assert play.visible() == seen(1)


def test_an_undelivered_record_fails_the_batch(play: Play) -> None:
    """The broker refuses the record. Fails if errors do not count without a transaction (rule 2)."""
    run = driver(play, "AT_LEAST_ONCE", **{"kafka.message.max.bytes": "8000000"})
    with pytest.raises(BadRecordError, match=r"\(AT_LEAST_ONCE\): writing to .*Message size too large"):
        run.process(play.batch(0), Tasks(play, [["x" * 3_000_000]]))
    assert play.decisions() == []
    write(run, play, 0)  # with a new producer, which has had no error
    assert play.visible() == seen(1)


def test_a_weaker_guarantee_is_logged_with_its_consequences(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    driver(play, "AT_LEAST_ONCE").close()
    driver(play, "NONE").close()
    assert [
        record.getMessage().partition(" has ")[2] for record in caplog.records if "guarantee=" in record.getMessage()
    ] == [
        "guarantee='AT_LEAST_ONCE', so readers see rows before the batch is decided, and a failure may duplicate rows",
        "guarantee='NONE', so readers see rows before the batch is decided, and a failure may lose or duplicate rows",
    ]


@pytest.mark.whole
@pytest.mark.parametrize("direct", ["driver", "tasks"])
@pytest.mark.parametrize("guarantee", ["AT_LEAST_ONCE", "EXACTLY_ONCE"])
def test_a_killed_driver_duplicates_exactly_what_its_guarantee_allows(
    guarantee: str, direct: str, kafka: KafkaService, tmp_path: Path, spark: SparkSession
) -> None:
    doubled = 20 if guarantee == "AT_LEAST_ONCE" else 0
    sink, settings = {"guarantee": guarantee}, {"write_by": direct}
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, sink=sink, settings=settings, max_offsets=20)
    try:
        pipeline.feed(60)
        assert pipeline.process("driver.confirmed@2=kill").ended() == KILLED
    finally:
        pipeline.close()
    pipeline.run(spark)
    extra = pipeline.visible() - pipeline.given
    assert (sum(extra.values()), set(extra.values())) == (doubled, {1} if doubled else set())
    assert not pipeline.given - pipeline.visible()
