"""Rule 2: delivery errors count; a vote needs no error, an empty queue, and every row enqueued.

Without this rule, a partial transaction, which librdkafka itself refuses to commit, is committed from outside.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, create_topic, record_batch
from tests.live.rules.schedules import Play, at, playing, until, work_of, writer_of
from tests.live.services import KafkaService
from twopc.errors import BadRecordError, RetriableError, TwoPhaseCommitError
from twopc.sinks.kafka import writer as kafka_writer
from twopc.state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from twopc.integration.services.kafka import LocalKafka
    from twopc.sinks.kafka.handle import KafkaHandle

LARGE = "x" * 20_000
HUGE = "x" * 2_000_000


def with_output(play: Play, config: Mapping[str, str]) -> None:
    """Give the query an output topic with these settings and one partition, so that its rows share a request."""
    play.topic = create_topic(play.bootstrap_servers, f"{play.name}-picky", partitions=1, config=config)
    object.__setattr__(play.sink, "topic", play.topic)


def without_keys(rows: list[str]) -> pa.RecordBatch:
    return record_batch(rows).drop_columns(["key"])


def require_no_vote(play: Play, error: type[TwoPhaseCommitError], refused: pa.RecordBatch) -> None:
    """Write good rows, rejected rows, and good rows again.

    There must be no handle, and no client can commit the transaction.
    """
    driver = play.driver()
    driver.recover(play.batch(0))
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

    # The writer's abort may come too late on a busy machine, so the sweep is what ends the transaction for certain. After
    # that, no one can publish the rest, not even with the producer id and epoch of the broken transaction.
    play.driver().recover(play.batch(0))
    assert until(lambda: left_open not in play.open_transactions())
    assert play.end(found, commit=True) != "NONE"
    assert play.visible() == Counter()


def test_a_record_above_its_topics_limit_prevents_the_vote(play: Play) -> None:
    """The broker rejects the record after `produce()` has accepted it. Fails if delivery errors are ignored."""
    with_output(play, {"max.message.bytes": "10000"})
    require_no_vote(play, BadRecordError, record_batch([LARGE]))


def test_a_record_that_the_broker_rejects_prevents_the_vote(play: Play) -> None:
    """A compacted topic requires a key. Fails if delivery errors are ignored."""
    with_output(play, {"cleanup.policy": "compact"})
    require_no_vote(play, BadRecordError, without_keys(["no key"]))


def test_a_record_that_the_client_rejects_prevents_the_vote(play: Play) -> None:
    """The record is never sent, so it has no delivery report. Fails if an error of `produce()` is only logged."""
    require_no_vote(play, BadRecordError, record_batch([HUGE]))


def test_a_batch_with_a_rejected_record_is_never_decided_or_visible(play: Play) -> None:
    """One task votes, the other cannot. Fails if half a task is published."""
    with_output(play, {"max.message.bytes": "10000"})
    driver = play.driver()
    with pytest.raises(BadRecordError, match=r"max\.message\.bytes"):
        driver.process(play.batch(0), Tasks(play, [["a", "b"], ["c", LARGE, "d"]]))
    assert play.decisions() == []
    assert until(lambda: play.open_transactions() == ())
    assert play.visible() == Counter()
    driver.process(play.batch(0), Tasks(play, [["a", "b"], ["c", "d"]]))
    assert play.visible() == Counter("abcd")


def test_unacknowledged_records_prevent_the_vote(
    local_kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops answering before the flush. Fails if the writer votes with records still in its queue."""
    monkeypatch.setattr(kafka_writer, "_ABORT_TIMEOUT_MS", 100)
    with playing(KafkaService(local_kafka.bootstrap_servers), tmp_path, timeout_ms=4_000) as play:
        driver = play.driver()
        driver.recover(play.batch(0))
        writer = writer_of(play, work_of(play, 0, driver_epoch=driver.log_epoch), 0)
        writer.write_rows(record_batch(["a", "b"]))
        try:
            with pytest.raises(RetriableError, match="not acknowledged"), at("task.written", local_kafka.pause):
                writer.snapshot_state(0)
            writer.close()
        finally:
            local_kafka.resume()
        play.driver().process(play.batch(0), Tasks(play, [["a", "b"]]))
        assert play.visible() == Counter("ab")
