"""Rule 2: delivery errors count; a vote needs none, an empty queue, and every row enqueued.

Else a partial transaction, which librdkafka itself refuses to commit, is committed from outside.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sinks.kafka import writer as kafka_writer
from tests.live.pipeline import Tasks, create_topic, record_batch
from tests.live.rules.schedules import Play, at, playing, until, work_of, writer_of
from twopc.errors import BadRecordError, RetriableError, TwoPhaseCommitError
from twopc.state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from integration.services.kafka import LocalKafka
    from sinks.kafka.handle import KafkaHandle
    from tests.live.services import KafkaService

LARGE = "x" * 20_000
HUGE = "x" * 2_000_000


def with_output(play: Play, config: Mapping[str, str]) -> None:
    """The query's output is a topic with these settings, one partition: its rows go in one request."""
    play.topic = create_topic(play.bootstrap_servers, f"{play.name}-picky", partitions=1, config=config)
    object.__setattr__(play.sink, "topic", play.topic)


def without_keys(rows: list[str]) -> pa.RecordBatch:
    return record_batch(rows).drop_columns(["key"])


def require_no_vote(play: Play, error: type[TwoPhaseCommitError], refused: pa.RecordBatch) -> None:
    """Good rows, refused ones, good ones again: no handle, and what is open can be ended by nobody as a commit."""
    driver = play.driver()
    driver.initialize_state(play.batch(0))
    writer = writer_of(play, work_of(play, 0, driver_epoch=driver.log_epoch), 0)
    votes: list[KafkaHandle] = []

    def write_and_vote() -> None:
        for rows in (record_batch(["before"]), refused, record_batch(["after"])):
            writer.write_rows(rows)
        votes.append(writer.pre_commit())

    with pytest.raises(error):
        write_and_vote()
    assert votes == []
    assert writer.state is TransactionState.OPEN
    left_open = writer._begun.transactional_id
    found = play.found(left_open)
    writer.close()

    # Nobody can publish what is left, not even with the producer id and epoch of the broken transaction.
    assert until(lambda: left_open not in play.open_transactions())
    assert play.end(found, commit=True) != "NONE"
    assert play.visible() == Counter()


def test_a_record_larger_than_its_topic_takes_is_no_vote(play: Play) -> None:
    """The broker refuses it after `produce()` has taken it. Catches `_require_no_errors` emptied."""
    with_output(play, {"max.message.bytes": "10000"})
    require_no_vote(play, BadRecordError, record_batch([LARGE]))


def test_a_record_that_the_broker_finds_invalid_is_no_vote(play: Play) -> None:
    """A compacted topic wants a key. Catches `_require_no_errors` emptied."""
    with_output(play, {"cleanup.policy": "compact"})
    require_no_vote(play, BadRecordError, without_keys(["no key"]))


def test_a_record_that_the_client_refuses_is_no_vote(play: Play) -> None:
    """It is never sent, so no delivery report speaks of it. Catches a `produce()` whose error is logged and passed over."""
    require_no_vote(play, BadRecordError, record_batch([HUGE]))


def test_a_batch_with_a_refused_record_is_never_decided_and_nothing_of_it_is_visible(play: Play) -> None:
    """The whole flow: one task votes, the other cannot. Catches the same, where it would publish half a task."""
    with_output(play, {"max.message.bytes": "10000"})
    driver = play.driver()
    with pytest.raises(BadRecordError, match=r"max\.message\.bytes"):
        driver.process(play.batch(0), Tasks(play, [["a", "b"], ["c", LARGE, "d"]]))
    assert play.decisions() == []
    assert until(lambda: play.open_transactions() == ())
    assert play.visible() == Counter()
    driver.process(play.batch(0), Tasks(play, [["a", "b"], ["c", "d"]]))
    assert play.visible() == Counter("abcd")


def test_records_that_nobody_acknowledged_are_no_vote(
    kafka: KafkaService, local_kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops answering before the flush. Catches `left` ignored and `_written_to` that waits for nothing."""
    monkeypatch.setattr(kafka_writer, "_ABORT_TIMEOUT_MS", 100)
    with playing(kafka, tmp_path, timeout_ms=1_500) as play:
        driver = play.driver()
        driver.initialize_state(play.batch(0))
        writer = writer_of(play, work_of(play, 0, driver_epoch=driver.log_epoch), 0)
        writer.write_rows(record_batch(["a", "b"]))
        try:
            with pytest.raises(RetriableError, match="not acknowledged"), at("task.written", local_kafka.pause):
                writer.pre_commit()
            writer.abort()
        finally:
            local_kafka.resume()
        play.driver().process(play.batch(0), Tasks(play, [["a", "b"]]))
        assert play.visible() == Counter("ab")
