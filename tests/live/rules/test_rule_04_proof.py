"""Rule 4: only proof counts.

NONE to an EndTxn at a confirmed (producer id, epoch) proves the commit. Any other answer proves nothing: then the marker
decides, and its absence only in front of a barrier and only where nothing was deleted.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from integration.services.kafka import LocalKafka
from sinks.kafka import decision_log, marker_search
from sinks.kafka import reader as kafka_reader
from sinks.kafka.reports import NO_ANSWER
from sinks.kafka.transactions import TransactionClient
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE, WithOrphan
from tests.live.rules.schedules import Play, at, crash, playing, until
from tests.live.services import KafkaService, chosen
from twopc.errors import CommitBlockedError, DecisionLogDamagedError, RetriableError
from twopc.handle import Evidence
from twopc.participants import Participants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sinks.kafka.handle import ProducerIdentity
    from twopc.engine import Work
    from twopc.records import TaskReport


@pytest.fixture
def play(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path, timeout_ms=3_000) as play:
        yield play


def initialise_again(play: Play, batch: int = 0) -> list[str]:
    """Somebody initialises every id of a batch again: no EndTxn for it is answered NONE any more."""
    handles = play.decided(batch)
    for handle in handles:
        play.fence(handle.transactional_id)
        assert play.end(handle, commit=True) not in {"NONE", NO_ANSWER}
    return [handle.uuid for handle in handles]


def delete_before_end(play: Play, partitions: Sequence[int]) -> None:
    """Somebody deletes the records of some of the ledger's partitions (kafka-delete-records)."""
    admin = AdminClient({"bootstrap.servers": play.bootstrap_servers})
    where = [TopicPartition(play.sink.ledger, partition, -1) for partition in partitions]
    for future in admin.delete_records(where).values():
        future.result()


def test_a_commit_that_is_refused_is_proven_by_the_marker_and_not_written_again(play: Play) -> None:
    """Committed, and every EndTxn says "fenced". Catches a refusal taken for a loss (`commit` noting ABORTED)."""
    crash(play.driver(), play, 0, ROWS, "driver.committed")
    initialise_again(play)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


def test_a_transaction_without_a_marker_before_the_barrier_is_lost_and_written_anew(play: Play) -> None:
    """Aborted after the decision, and every EndTxn says the same "fenced". Catches a refusal taken for a commit."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    initialise_again(play)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (1, 0)
    assert play.plans() == ["write", "rewrite"]
    assert play.visible() == VISIBLE


def test_a_marker_behind_an_open_transaction_is_not_taken_for_an_absent_one(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan of an earlier driver epoch hides marker and barrier; it is swept, and the marker is found.

    Catches `evidence` that does not sweep: the query could not go on before the orphan has timed out.
    """
    first = play.driver()
    with at("driver.committed", lambda: initialise_again(play)), at("driver.swept", lambda: None):
        monkeypatch.setattr(Participants, "sweep", lambda *_: None)  # it dies before
        first.process(play.batch(0), WithOrphan(play, ROWS))
    monkeypatch.undo()
    assert len(play.open_transactions()) == 1
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


@pytest.mark.parametrize("slow_commit_s", [math.inf, 0.0], ids=["quick_broker", "slow_broker"])
def test_a_marker_hidden_by_a_transaction_that_is_not_ours_to_end_blocks_the_commit(
    play: Play, monkeypatch: pytest.MonkeyPatch, slow_commit_s: float
) -> None:
    """Unknown is neither committed nor lost.

    Catches `_read_to_barrier` that reads to the last stable offset (`last=None`), and UNKNOWN turned into ABORTED when
    the time is over (`search`). On a slow broker a barrier that cannot be read back is hidden, not in doubt: catches
    `write` reading it back while `_search` lets that error through.
    """
    monkeypatch.setattr(decision_log, "_SLOW_COMMIT_S", slow_commit_s)
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    hidden = play.decided(0)[1]
    foreign = play.open_foreign(f"somebody-{play.name}", play.sink.ledger, hidden.marker_partition)
    play.fence(hidden.transactional_id)
    replay = Tasks(play, ROWS)
    with pytest.raises(CommitBlockedError) as blocked:
        play.driver().process(play.batch(0), replay)
    assert blocked.value.transactions == (hidden.transaction,)
    assert (replay.prepared, replay.evaluated) == (0, 0)

    foreign.abort_transaction(10)
    play.driver().process(play.batch(0), replay)  # now it is proven lost, the other one committed
    assert play.visible() == VISIBLE


def test_deleted_markers_are_not_taken_for_absent_ones(play: Play) -> None:
    """Committed, but its proof was deleted. Catches `earliest > start` passed over: the batch would be written twice."""
    crash(play.driver(), play, 0, ROWS, "driver.committed")
    initialise_again(play)
    delete_before_end(play, [handle.marker_partition for handle in play.decided(0)])
    replay = Tasks(play, ROWS)
    with pytest.raises(CommitBlockedError) as blocked:
        play.driver().process(play.batch(0), replay)
    assert len(blocked.value.transactions) == 2
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


def test_markers_of_proven_batches_may_be_deleted(play: Play) -> None:
    """The other side of it: what lies below a decision's own beginning is not missed."""
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
    """As :func:`delete_before_end`, but for the last record of each partition of markers and its commit."""
    admin = AdminClient({"bootstrap.servers": play.bootstrap_servers})
    partitions = [handle.marker_partition for handle in play.decided(0)]
    ends = kafka_reader.offsets(admin, play.sink.ledger, partitions, OffsetSpec.latest(), timeout_ms=10_000)
    for future in admin.delete_records(
        [TopicPartition(play.sink.ledger, p, end - 2) for p, end in ends.items()]
    ).values():
        future.result()


def test_markers_that_are_deleted_while_they_are_looked_for_are_not_taken_for_absent_ones(play: Play) -> None:
    """The partition began early enough when it was asked; then only the barrier is left.

    Catches `auto.offset.reset` other than `error`, and `read` returning what it has when `start` is gone.
    """
    crash(play.driver(), play, 0, [["a"]], "driver.committed")
    initialise_again(play)
    replay = Tasks(play, [["a"]])
    driver = play.driver()
    with pytest.raises(CommitBlockedError), at("driver.barred", lambda: delete_before_barrier(play)):
        driver.process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert play.visible() == Counter("a")


def test_markers_that_cannot_be_looked_for_are_not_taken_for_absent_ones(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, its EndTxn refused, and the leader of the markers silent. Catches `_search` that calls that ABORTED."""

    def silent(*_: object, **__: object) -> dict[int, int]:
        raise RetriableError("no answer")

    crash(play.driver(), play, 0, ROWS, "driver.committed")
    initialise_again(play)
    replay = Tasks(play, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(marker_search, "offsets", silent)
        with pytest.raises(CommitBlockedError):
            play.driver().process(play.batch(0), replay)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


def test_who_looks_for_a_proof_ends_nothing_that_may_still_be_decided(play: Play) -> None:
    """Catches `evidence` that sweeps its own driver epoch: what is prepared beside the one that is asked for."""

    class Looked(Tasks):
        def prepare(self, work: Work) -> list[TaskReport]:
            tasks = super().prepare(work)
            asked, *others = play.handles(tasks)
            assert driver.participants.committers[play.name].evidence([asked], {}) == {asked: Evidence.UNKNOWN}
            assert play.describe(others[0].transactional_id).state == "Ongoing"
            return tasks

    driver = play.driver()
    driver.process(play.batch(0), Looked(play, ROWS))
    assert play.visible() == VISIBLE


def test_a_truncated_decision_log_is_damage_and_not_an_empty_log(play: Play) -> None:
    """Somebody deletes the decisions. Catches `fold` without its look at where the log starts: all written twice.

    A new driver, in another process, has seen none of it; the one that drives goes on.
    """
    first = play.driver()
    first.process(play.batch(0), Tasks(play, ROWS))
    delete_before_end(play, [0])
    replay = Tasks(play, ROWS)
    for _ in range(2):
        with pytest.raises(DecisionLogDamagedError, match="but was truncated to 0 only"):
            play.driver().process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert play.visible() == VISIBLE
    first.process(play.batch(1), Tasks(play, [["d"]]))  # nobody has acquired the sink since
    assert play.visible() == Counter("abcd")


def lose_answers(monkeypatch: pytest.MonkeyPatch, count: float) -> list[str]:
    """EndTxn requests arrive, and the answers to the first ``count`` are lost. Returns what is asked, as it is asked."""
    asked: list[str] = []
    really = TransactionClient.end

    def end(client: TransactionClient, identities: Sequence[ProducerIdentity], **how: Any) -> dict[str, str]:
        asked.append(", ".join(identity.transactional_id for identity in identities))
        answers = really(client, identities, **how)
        return dict.fromkeys(answers, NO_ANSWER) if len(asked) <= count else answers

    monkeypatch.setattr(TransactionClient, "end", end)
    return asked


def test_a_commit_whose_answer_was_lost_is_asked_again_until_it_is_proven(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches NO_ANSWER that is not asked again: without a marker search each would be in doubt."""
    asked = lose_answers(monkeypatch, 3)
    monkeypatch.setattr("sinks.kafka.marker_search.search", lambda *_, **__: pytest.fail("the answer proves it"))
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert len(asked) >= 4
    assert play.visible() == VISIBLE


def test_a_commit_that_is_never_answered_is_proven_by_its_markers(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches silence taken for a loss, or for success."""
    lose_answers(monkeypatch, math.inf)
    tasks = Tasks(play, ROWS)
    play.driver().process(play.batch(0), tasks)
    assert (tasks.prepared, tasks.evaluated) == (1, 0)
    assert play.plans() == ["write"]
    assert play.visible() == VISIBLE


@pytest.fixture(scope="module")
def impatient() -> Iterator[KafkaService]:
    """A broker that looks for transactions which have timed out ten times a second."""
    if chosen() == "docker":
        pytest.skip("starts a broker of its own")
    with LocalKafka(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as broker:
        yield KafkaService(broker.bootstrap_servers)


def test_a_decided_batch_whose_transactions_timed_out_is_proven_lost_and_written_anew(
    impatient: KafkaService, tmp_path: Path
) -> None:
    """The broker itself aborts them while no driver runs; its answer alone does not tell. The same mutations.

    They live for 8 s: a busy machine has to prepare them within three quarters of that.
    """
    with playing(impatient, tmp_path, options={"kafka.transaction.timeout.ms": 8_000}) as play:
        crash(play.driver(), play, 0, ROWS, "driver.decided")
        assert until(lambda: play.open_transactions() == (), 30)
        replay = Tasks(play, ROWS)
        play.driver().process(play.batch(0), replay)
        assert (replay.prepared, replay.evaluated) == (1, 0)
        assert play.plans() == ["write", "rewrite"]
        assert play.visible() == VISIBLE
