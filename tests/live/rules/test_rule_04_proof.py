"""Rule 4: only proof counts.

NONE as the response to EndTxn at a confirmed (producer id, epoch) proves the commit. No other response proves anything; then the
marker decides. Its absence is a proof only in front of a barrier, and only where nothing was deleted.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE, WithOrphan
from tests.live.rules.schedules import Play, at, crash, playing, until
from tests.live.services import KafkaService, chosen
from twopc.attempt import Evidence
from twopc.errors import CommitBlockedError, DecisionLogDamagedError, RetriableError
from twopc.integration.services.kafka import LocalKafka
from twopc.participants import Participants
from twopc.sinks.kafka import driver_producer, markers
from twopc.sinks.kafka import reader as kafka_reader
from twopc.sinks.kafka.reports import NO_ANSWER
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sinks.kafka.handle import ProducerIdentity


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path, timeout_ms=3_000) as play:
        yield play


def initialise_again(play: Play, batch: int = 0) -> list[str]:
    """Initialise every id of a batch from outside, so that the response to an EndTxn for it is never NONE again."""
    handles = play.decided(batch)
    for handle in handles:
        play.fence(handle.transactional_id)
        assert play.end(handle, commit=True) not in {"NONE", NO_ANSWER}
    return [handle.uuid for handle in handles]


def delete_before_end(play: Play, partitions: Sequence[int]) -> None:
    """Delete the records of some ledger partitions from outside (kafka-delete-records)."""
    admin = AdminClient({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    where = [TopicPartition(play.sink.ledger, partition, -1) for partition in partitions]
    for future in admin.delete_records(where).values():
        future.result()


def test_a_refused_commit_is_proven_by_its_marker(play: Play) -> None:
    """The transaction is committed, and every EndTxn answers "fenced". Fails if a refusal counts as a loss."""
    crash(play.driver(), play, 0, ROWS, "driver.committed")
    initialise_again(play)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


def test_a_transaction_without_a_marker_before_the_barrier_is_lost_and_rewritten(play: Play) -> None:
    """The transaction is aborted, and every EndTxn answers "fenced", too. Fails if a refusal counts as a commit."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    initialise_again(play)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (1, 0)
    assert play.plans() == ["write", "rewrite"]
    assert play.visible() == VISIBLE


def test_a_marker_behind_an_orphans_open_transaction_is_found(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan of an earlier driver epoch hides marker and barrier; it is swept, and then the marker is found.

    Fails if `prove` does not sweep: the query could not continue until the orphan times out.
    """
    first = play.driver()
    with at("driver.committed", lambda: initialise_again(play)), at("driver.swept", lambda: None):
        monkeypatch.setattr(Participants, "sweep", lambda *_: None)  # as if the driver had died before the sweep
        first.process(play.batch(0), WithOrphan(play, ROWS))
    monkeypatch.undo()
    assert len(play.open_transactions()) == 1
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


@pytest.mark.parametrize("slow_commit_s", [math.inf, 0.0], ids=["quick_broker", "slow_broker"])
def test_a_marker_hidden_by_a_foreign_open_transaction_blocks_the_commit(
    play: Play, monkeypatch: pytest.MonkeyPatch, slow_commit_s: float
) -> None:
    """Unknown means neither committed nor lost.

    Fails if markers are only read up to the last stable offset, or if unknown becomes lost after the timeout. On a slow broker,
    fails if a barrier that cannot be read back raises an error instead of being hidden.
    """
    monkeypatch.setattr(driver_producer, "_SLOW_COMMIT_S", slow_commit_s)
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    hidden = play.decided(0)[1]
    foreign = play.open_foreign(f"somebody-{play.name}", play.sink.ledger, hidden.marker_partition)
    play.fence(hidden.transactional_id)
    replay = Tasks(play, ROWS)
    reason = rf"{play.sink.ledger}/{hidden.marker_partition} cannot be read.* an open transaction hides the records"
    with pytest.raises(CommitBlockedError, match=reason) as blocked:
        play.driver().process(play.batch(0), replay)
    assert blocked.value.transactions == (hidden.transaction,)
    assert (replay.prepared, replay.evaluated) == (0, 0)

    foreign.abort_transaction(10)
    play.driver().process(play.batch(0), replay)  # now one transaction is proven lost, and the other one committed
    assert play.visible() == VISIBLE


def test_a_deleted_marker_is_not_an_absent_one(play: Play) -> None:
    """The transaction is committed, but its proof was deleted.

    Fails if deletions are ignored: the batch would be duplicated.
    """
    crash(play.driver(), play, 0, ROWS, "driver.committed")
    initialise_again(play)
    delete_before_end(play, [handle.marker_partition for handle in play.decided(0)])
    replay = Tasks(play, ROWS)
    reason = rf"markers in {play.sink.ledger}/[0-9] were deleted.*kafka\.transaction\.timeout\.ms=900000"
    with pytest.raises(CommitBlockedError, match=reason) as blocked:
        play.driver().process(play.batch(0), replay)
    assert len(blocked.value.transactions) == 2
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


def test_markers_of_proven_batches_may_be_deleted(play: Play) -> None:
    """Only records above the decision's own scan start are needed."""
    first = play.driver()
    first.process(play.batch(0), Tasks(play, ROWS))
    delete_before_end(play, [handle.marker_partition for handle in play.decided(0)])
    crash(first, play, 1, [["d"], ["e"]], "driver.committed")
    initialise_again(play, 1)
    replay = Tasks(play, [["d"], ["e"]])
    play.driver().process(play.batch(1), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.visible() == Counter("abcde")


def delete_before_barrier(play: Play) -> None:
    """As :func:`delete_before_end`, but keep the last record of each marker partition and its commit."""
    admin = AdminClient({"bootstrap.servers": play.bootstrap_servers, "log_level": 0})
    partitions = [handle.marker_partition for handle in play.decided(0)]
    ends = kafka_reader.offsets(admin, play.sink.ledger, partitions, OffsetSpec.latest(), timeout_ms=10_000)
    for future in admin.delete_records(
        [TopicPartition(play.sink.ledger, p, end - 2) for p, end in ends.items()]
    ).values():
        future.result()


def test_a_marker_deleted_during_the_search_is_not_an_absent_one(play: Play) -> None:
    """The partition starts early enough when the search begins; then only the barrier is left.

    Fails if the reader skips over deleted records, or returns what it has when its start is deleted.
    """
    crash(play.driver(), play, 0, [["a"]], "driver.committed")
    initialise_again(play)
    replay = Tasks(play, [["a"]])
    driver = play.driver()
    with pytest.raises(CommitBlockedError), at("driver.barred", lambda: delete_before_barrier(play)):
        driver.process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert play.visible() == Counter("a")


def test_a_marker_that_cannot_be_searched_for_is_not_an_absent_one(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction is committed, EndTxn is refused, and the markers' leader is silent.

    Fails if a failed search counts as an abort.
    """

    def silent(*_: object, **__: object) -> dict[int, int]:
        raise RetriableError("no answer")

    crash(play.driver(), play, 0, ROWS, "driver.committed")
    initialise_again(play)
    replay = Tasks(play, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(markers, "offsets", silent)
        with pytest.raises(CommitBlockedError, match="cannot be read: no answer"):
            play.driver().process(play.batch(0), replay)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


def test_the_search_for_evidence_ends_no_transaction_of_the_same_driver(play: Play) -> None:
    """Fails if `prove` sweeps its own driver epoch, with transactions that may still be decided."""

    class Looked(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            asked, *others = play.handles(tasks)
            assert driver.participants.committers[play.name].prove([asked], {}) == {asked: Evidence.UNKNOWN}
            assert play.describe(others[0].transactional_id).state == "Ongoing"
            return tasks

    driver = play.driver()
    driver.process(play.batch(0), Looked(play, ROWS))
    assert play.visible() == VISIBLE


def test_a_truncated_decision_log_counts_as_damage(play: Play) -> None:
    """The decisions are deleted from outside. Fails if the log's start is ignored: every batch would be written again.

    A new driver has seen none of them and must stop; the running driver continues.
    """
    first = play.driver()
    first.process(play.batch(0), Tasks(play, ROWS))
    delete_before_end(play, [0])
    replay = Tasks(play, ROWS)
    for _ in range(2):
        with pytest.raises(DecisionLogDamagedError, match="but was truncated only up to 0"):
            play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert play.visible() == VISIBLE
    first.process(play.batch(1), Tasks(play, [["d"]]))  # no other driver has acquired the sink
    assert play.visible() == Counter("abcd")


def lose_answers(monkeypatch: pytest.MonkeyPatch, count: float) -> list[str]:
    """Lose the responses to the first ``count`` EndTxn requests, which do arrive. The returned list grows with each request."""
    asked: list[str] = []
    really = TransactionClient.end

    def end(client: TransactionClient, identities: Sequence[ProducerIdentity], **how: Any) -> dict[str, str]:
        asked.append(", ".join(identity.transactional_id for identity in identities))
        answers = really(client, identities, **how)
        return dict.fromkeys(answers, NO_ANSWER) if len(asked) <= count else answers

    monkeypatch.setattr(TransactionClient, "end", end)
    return asked


def test_an_unanswered_commit_is_repeated_until_it_is_proven(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a missing response is final: the marker search is disabled here."""
    asked = lose_answers(monkeypatch, 3)
    monkeypatch.setattr(
        "twopc.sinks.kafka.markers.search", lambda *_, **__: pytest.fail("the response should have proved the commit")
    )
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert len(asked) >= 4
    assert play.visible() == VISIBLE


def test_an_unanswered_commit_is_proven_by_its_marker(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a missing response counts as a loss or as a success."""
    lose_answers(monkeypatch, math.inf)
    tasks = Tasks(play, ROWS)
    play.driver().process(play.batch(0), tasks)
    assert (tasks.prepared, tasks.evaluated) == (1, 0)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


@pytest.fixture(scope="module")
def impatient() -> Iterator[KafkaService]:
    """A broker that looks for expired transactions ten times a second."""
    if chosen() == "docker":
        pytest.skip("this test starts a separate broker")
    with LocalKafka(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as broker:
        yield KafkaService(broker.bootstrap_servers)


def test_a_decided_batch_whose_transactions_timed_out_is_proven_lost_and_rewritten(
    impatient: KafkaService, tmp_path: Path
) -> None:
    """The broker aborts them while no driver runs; its response to EndTxn alone proves nothing.

    The timeout is 8 s; a busy machine has to prepare the transactions within three quarters of that.
    """
    with playing(impatient, tmp_path, options={"kafka.transaction.timeout.ms": 8_000}) as play:
        crash(play.driver(), play, 0, ROWS, "driver.decided")
        assert until(lambda: play.open_transactions() == (), 30)
        replay = Tasks(play, ROWS)
        play.driver().process(play.batch(0), replay)
        assert (replay.prepared, replay.evaluated) == (1, 0)
        assert play.plans() == ["write", "rewrite"]
        assert play.visible() == VISIBLE
