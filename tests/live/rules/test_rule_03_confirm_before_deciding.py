"""Rule 3: confirm before deciding.

Suppose that another process ends the transaction between its last row and its marker. Without this rule, the marker reopens
the transaction at the same epoch, and then "proves" aborted rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, at, until
from twopc import batch_transaction
from twopc.errors import CheckpointExpiredError, RetriableError

if TYPE_CHECKING:
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sinks.kafka.handle import KafkaHandle


def end_what_has_rows(play: Play, *, commit: bool) -> None:
    """End the only open transaction from outside once the broker has its rows, at its own producer id and epoch."""

    def has_rows() -> bool:
        return any(
            partition.startswith(f"{play.topic}:")
            for tid in play.open_transactions()
            for partition in play.describe(tid).partitions
        )

    assert until(has_rows)
    (tid,) = play.open_transactions()
    found = play.found(tid)
    assert play.end(found, commit=commit) == "NONE"
    assert until(lambda: play.describe(tid).state.startswith("Complete"))
    assert play.describe(tid).producer_epoch == found.producer_epoch  # under transactions V1, the epoch stays the same


def only_attempt(play: Play) -> int:
    (decision,) = play.decisions()
    assert decision.kind == "write"
    return decision.attempt.counter


def test_a_transaction_aborted_before_the_last_marker_write_and_reopened_by_it_is_not_decided(play: Play) -> None:
    """Id, producer id, epoch and state are the same; only the partitions differ. Fails if missing partitions are accepted."""
    with at("task.written", lambda: end_what_has_rows(play, commit=False)):
        play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert only_attempt(play) == 2
    assert play.visible() == VISIBLE
    assert play.open_transactions() == ()


def test_a_transaction_ended_after_its_handle_was_returned_is_not_decided(play: Play) -> None:
    """Fails if both the state and the partitions of a transaction are ignored: a decided batch would be lost."""

    class Ended(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            if self.prepared == 1:
                assert play.end(play.handles(tasks)[1], commit=False) == "NONE"
            return tasks

    play.driver().process(play.batch(0), Ended(play, ROWS))
    assert only_attempt(play) == 2
    assert play.visible() == VISIBLE


def test_a_transaction_from_a_newer_producer_with_the_same_id_is_not_confirmed(
    play: Play,
) -> None:
    """The handle's writer is fenced, and the new transaction differs only in its epoch.

    Fails if the producer id and epoch are not compared with those of the handle.
    """
    newcomers = []

    class Replaced(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            if self.prepared == 1:
                handle = play.handles(tasks)[1]
                producer = play.open_foreign(handle.transactional_id, play.sink.ledger, handle.marker_partition)
                for partition in range(4):
                    producer.produce(play.topic, b"another's", partition=partition)
                assert producer.flush(10) == 0
                found = play.describe(handle.transactional_id)
                assert found.state == "Ongoing"
                assert found.partitions >= handle.topic_partitions()
                newcomers.append(producer)
            return tasks

    play.driver().process(play.batch(0), Replaced(play, ROWS))
    assert only_attempt(play) == 2
    assert play.visible() == VISIBLE


@pytest.mark.parametrize("wrong", ["producer_id", "producer_epoch"])
def test_a_handle_with_a_wrong_producer_id_or_epoch_is_refused(play: Play, wrong: str) -> None:
    """Fails if either half of the identity is not compared."""

    class Confirmed(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            committer = driver.participants.committers[play.name]
            handles: list[KafkaHandle] = play.handles(tasks)
            committer.confirm(handles, 0)
            handles[0] = dataclasses.replace(handles[0], **{wrong: getattr(handles[0], wrong) + 1})
            with pytest.raises(RetriableError, match="the rows were written by producer"):
                committer.confirm(handles, 0)
            return tasks

    driver = play.driver()
    driver.process(play.batch(0), Confirmed(play, ROWS))
    assert play.visible() == VISIBLE


def test_one_unconfirmed_handle_fails_the_whole_attempt(play: Play) -> None:
    """Without this check, the other transactions would be decided without this one.

    The failed attempt's transactions must not hold back readers.
    """

    class OneFenced(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            play.fence(play.handles(tasks)[0].transactional_id)
            return tasks

    driver = play.driver()
    with pytest.raises(RetriableError, match="cannot be decided"):
        driver.process(play.batch(0), OneFenced(play, ROWS))
    assert play.decisions() == []
    assert play.open_transactions() == ()
    driver.process(play.batch(0), Tasks(play, ROWS))
    assert play.visible() == VISIBLE


def test_no_batch_is_decided_if_its_transactions_could_expire_before_the_commit(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps 15 minutes while the tasks vote. Fails if `confirm` ignores the remaining time."""
    clock = itertools.chain([0.0], itertools.repeat(900 - play.sink.reserve_ms / 1000 + 1))
    driver = play.driver()
    driver.recover(play.batch(0))
    monkeypatch.setattr(batch_transaction, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    tasks = Tasks(play, ROWS)
    with pytest.raises(CheckpointExpiredError, match=r"increase kafka\.transaction\.timeout\.ms"):
        driver.process(play.batch(0), tasks)
    assert tasks.prepared == 1  # another attempt would take just as long
    assert play.decisions() == []
    assert play.open_transactions() == ()
    assert play.visible() == Counter()
