"""Rule 3: confirm before deciding.

Else: ended by somebody between last row and marker, then reopened by the marker at the same epoch: the marker "proves"
aborted rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, playing, until
from twopc import coordinator
from twopc.errors import PrepareTimeoutError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sinks.kafka_writer import KafkaHandle
    from tests.live.services import KafkaService
    from twopc.decision import TaskReport
    from twopc.engine import Work

ROWS = [["a", "b"], ["c"]]
VISIBLE = Counter("abc")


@pytest.fixture
def query(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path) as play:
        yield play


def end_what_has_rows(query: Play, *, commit: bool) -> None:
    """Somebody ends the one open transaction as soon as the broker has its rows, at its own producer id and epoch."""

    def has_rows() -> bool:
        return any(
            partition.startswith(f"{query.topic}:")
            for tid in query.open_transactions()
            for partition in query.describe(tid).partitions
        )

    assert until(has_rows)
    (tid,) = query.open_transactions()
    found = query.found(tid)
    assert query.end(found, commit=commit) == "NONE"
    assert until(lambda: query.describe(tid).state.startswith("Complete"))
    assert query.describe(tid).producer_epoch == found.producer_epoch  # transactions V1: the epoch stays


def only_attempt(query: Play) -> int:
    (decision,) = query.decisions()
    assert decision.plan == "write"
    return decision.attempt.counter


def test_a_transaction_that_was_aborted_before_its_marker_and_reopened_by_it_is_not_decided(query: Play) -> None:
    """Same id, producer id, epoch, and Ongoing: only the partitions tell. Catches `missing` dropped from `_why_not`."""
    with at("task.written", lambda: end_what_has_rows(query, commit=False)):
        query.driver().process(query.checkpoint(0), Tasks(query, ROWS))
    assert only_attempt(query) == 2
    assert query.visible() == VISIBLE
    assert query.open_transactions() == ()


def test_a_transaction_that_was_ended_after_its_handle_is_not_decided(query: Play) -> None:
    """Catches `_why_not` without `state` and without `missing` (either refuses it): a decided batch would be lost."""

    class Ended(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            if self.prepared == 1:
                assert query.end(query.handles(tasks)[1], commit=False) == "NONE"
            return tasks

    query.driver().process(query.checkpoint(0), Ended(query, ROWS))
    assert only_attempt(query) == 2
    assert query.visible() == VISIBLE


def test_a_transaction_of_a_newer_producer_with_the_same_id_and_partitions_is_not_taken_for_the_voted_one(
    query: Play,
) -> None:
    """The handle's writer is fenced, and the newcomer's transaction looks the same but for its epoch.

    Catches `(producer_id, producer_epoch)` dropped from `_why_not`, or taken from the same call.
    """
    newcomers = []

    class Replaced(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            if self.prepared == 1:
                handle = query.handles(tasks)[1]
                producer = query.open_foreign(handle.transactional_id, query.sink.ledger, handle.marker_partition)
                for partition in range(4):
                    producer.produce(query.topic, b"another's", partition=partition)
                assert producer.flush(10) == 0
                found = query.describe(handle.transactional_id)
                assert found.state == "Ongoing"
                assert found.partitions >= handle.topic_partitions()
                newcomers.append(producer)
            return tasks

    query.driver().process(query.checkpoint(0), Replaced(query, ROWS))
    assert only_attempt(query) == 2
    assert query.visible() == VISIBLE


@pytest.mark.parametrize("wrong", ["producer_id", "producer_epoch"])
def test_a_handle_with_another_producer_than_the_broker_knows_is_refused(query: Play, wrong: str) -> None:
    """The same mutation, each half of the identity by itself."""

    class Confirmed(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            committer = driver._committers[query.name]
            handles: list[KafkaHandle] = query.handles(tasks)
            committer.confirm(handles, 0)
            handles[0] = dataclasses.replace(handles[0], **{wrong: getattr(handles[0], wrong) + 1})
            with pytest.raises(RetriableError, match="the writer had"):
                committer.confirm(handles, 0)
            return tasks

    driver = query.driver()
    driver.process(query.checkpoint(0), Confirmed(query, ROWS))
    assert query.visible() == VISIBLE


def test_one_handle_that_cannot_be_confirmed_voids_the_whole_attempt(query: Play) -> None:
    """Else the others would be decided without it. And the void attempt's transactions hold back no reader."""

    class OneFenced(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            query.fence(query.handles(tasks)[0].transactional_id)
            return tasks

    driver = query.driver()
    with pytest.raises(RetriableError, match="cannot be decided"):
        driver.process(query.checkpoint(0), OneFenced(query, ROWS))
    assert query.decisions() == []
    assert query.open_transactions() == ()
    driver.process(query.checkpoint(0), Tasks(query, ROWS))
    assert query.visible() == VISIBLE


def test_a_batch_whose_transactions_could_expire_before_their_commit_is_not_decided(
    query: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stands 15 minutes further when the tasks have voted. Catches `left_ms` not compared in `confirm`."""
    clock = itertools.chain([0.0], itertools.repeat(900 - query.sink.reserve_ms / 1000 + 1))
    driver = query.driver()
    driver.initialize_state(query.checkpoint(0))
    monkeypatch.setattr(coordinator, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    tasks = Tasks(query, ROWS)
    with pytest.raises(PrepareTimeoutError, match=r"raise kafka\.transaction\.timeout\.ms"):
        driver.process(query.checkpoint(0), tasks)
    assert tasks.prepared == 1  # as long again: no further attempt
    assert query.decisions() == []
    assert query.open_transactions() == ()
    assert query.visible() == Counter()
