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
from confluent_kafka.admin import AdminClient

from integration.local_services import LocalKafka
from sinks import kafka_ledger
from sinks.kafka_transactions import NO_ANSWER, TransactionClient
from tests.live.pipeline import Tasks, prepare_task
from tests.live.rules.schedules import Play, at, crash, playing, until
from tests.live.services import KafkaService, chosen
from twopc.errors import CommitBlockedError, DecisionLogDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from sinks.kafka_transactions import ProducerIdentity
    from twopc.decision import TaskReport
    from twopc.engine import Work

ROWS = [["a", "b"], ["c"]]
VISIBLE = Counter("abc")


@pytest.fixture
def query(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(kafka, tmp_path, timeout_ms=3_000) as play:
        yield play


def plans(query: Play) -> list[str]:
    return [decision.plan for decision in query.decisions()]


def initialise_again(query: Play, batch: int = 0) -> list[str]:
    """Somebody initialises every id of a batch again: no EndTxn for it is answered NONE any more."""
    handles = query.decided(batch)
    for handle in handles:
        query.fence(handle.transactional_id)
        assert query.end(handle, commit=True) not in {"NONE", NO_ANSWER}
    return [handle.uuid for handle in handles]


def delete_before_end(query: Play, partitions: Sequence[int]) -> None:
    """Somebody deletes the records of some of the ledger's partitions (kafka-delete-records)."""
    admin = AdminClient({"bootstrap.servers": query.bootstrap_servers})
    where = [TopicPartition(query.sink.ledger, partition, -1) for partition in partitions]
    for future in admin.delete_records(where).values():
        future.result()


def test_a_commit_that_is_refused_is_proven_by_the_marker_and_not_written_again(query: Play) -> None:
    """Committed, and every EndTxn says "fenced". Catches a refusal taken for a loss (`commit` noting ABORTED)."""
    crash(query.driver(), query, 0, ROWS, "driver.committed")
    initialise_again(query)
    replay = Tasks(query, ROWS)
    query.driver().process(query.checkpoint(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert plans(query) == ["write"]
    assert query.visible() == VISIBLE


def test_a_transaction_without_a_marker_before_the_barrier_is_lost_and_written_anew(query: Play) -> None:
    """Aborted after the decision, and every EndTxn says the same "fenced". Catches a refusal taken for a commit."""
    crash(query.driver(), query, 0, ROWS, "driver.decided")
    initialise_again(query)
    replay = Tasks(query, ROWS)
    query.driver().process(query.checkpoint(0), replay)
    assert (replay.prepared, replay.evaluated) == (1, 0)
    assert plans(query) == ["write", "rewrite"]
    assert query.visible() == VISIBLE


class WithOrphan(Tasks):
    """Before the last task, an attempt that nobody will accept leaves its transaction open in that task's partitions."""

    def prepare(self, work: Work) -> list[TaskReport]:
        prepare_task(self._query, work, len(self._rows) - 1, ["never"])
        return super().prepare(work)


def test_a_marker_behind_an_open_transaction_is_not_taken_for_an_absent_one(
    query: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan of an earlier incarnation hides marker and barrier; it is swept, and the marker is found.

    Catches `evidence` that does not sweep: the query could not go on before the orphan has timed out.
    """
    first = query.driver()
    with at("driver.committed", lambda: initialise_again(query)), at("driver.swept", lambda: None):
        monkeypatch.setattr(first, "_sweep", lambda: None)  # it dies before
        first.process(query.checkpoint(0), WithOrphan(query, ROWS))
    assert len(query.open_transactions()) == 1
    replay = Tasks(query, ROWS)
    query.driver().process(query.checkpoint(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert plans(query) == ["write"]
    assert query.visible() == VISIBLE


@pytest.mark.parametrize("slow_commit_s", [math.inf, 0.0], ids=["quick_broker", "slow_broker"])
def test_a_marker_hidden_by_a_transaction_that_is_not_ours_to_end_blocks_the_commit(
    query: Play, monkeypatch: pytest.MonkeyPatch, slow_commit_s: float
) -> None:
    """Unknown is neither committed nor lost.

    Catches `_read_to_barrier` that reads to the last stable offset (`last=None`), and UNKNOWN turned into ABORTED when
    the time is over (`search`). On a slow broker a barrier that cannot be read back is hidden, not in doubt: catches
    `write` reading it back while `_search` lets that error through.
    """
    monkeypatch.setattr(kafka_ledger, "_SLOW_COMMIT_S", slow_commit_s)
    crash(query.driver(), query, 0, ROWS, "driver.decided")
    hidden = query.decided(0)[1]
    foreign = query.open_foreign(f"somebody-{query.name}", query.sink.ledger, hidden.marker_partition)
    query.fence(hidden.transactional_id)
    replay = Tasks(query, ROWS)
    with pytest.raises(CommitBlockedError) as blocked:
        query.driver().process(query.checkpoint(0), replay)
    assert blocked.value.transactions == (hidden.transaction,)
    assert (replay.prepared, replay.evaluated) == (0, 0)

    foreign.abort_transaction(10)
    query.driver().process(query.checkpoint(0), replay)  # now it is proven lost, the other one committed
    assert query.visible() == VISIBLE


def test_deleted_markers_are_not_taken_for_absent_ones(query: Play) -> None:
    """Committed, but its proof was deleted. Catches `earliest > start` passed over: the batch would be written twice."""
    crash(query.driver(), query, 0, ROWS, "driver.committed")
    initialise_again(query)
    delete_before_end(query, [handle.marker_partition for handle in query.decided(0)])
    replay = Tasks(query, ROWS)
    with pytest.raises(CommitBlockedError) as blocked:
        query.driver().process(query.checkpoint(0), replay)
    assert len(blocked.value.transactions) == 2
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert plans(query) == ["write"]
    assert query.visible() == VISIBLE


def test_markers_of_settled_batches_may_be_deleted(query: Play) -> None:
    """The other side of it: what lies below a decision's own beginning is not missed."""
    first = query.driver()
    first.process(query.checkpoint(0), Tasks(query, ROWS))
    delete_before_end(query, [handle.marker_partition for handle in query.decided(0)])
    crash(first, query, 1, [["d"], ["e"]], "driver.committed")
    initialise_again(query, 1)
    replay = Tasks(query, [["d"], ["e"]])
    query.driver().process(query.checkpoint(1), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert query.visible() == Counter("abcde")


def test_a_truncated_decision_log_is_damage_and_not_an_empty_log(query: Play) -> None:
    """Somebody deletes the decisions. Catches `fold` without its look at where the log starts: all written twice.

    A new driver, in another process, has seen none of it; the one that drives goes on.
    """
    first = query.driver()
    first.process(query.checkpoint(0), Tasks(query, ROWS))
    delete_before_end(query, [0])
    replay = Tasks(query, ROWS)
    for _ in range(2):
        with pytest.raises(DecisionLogDamagedError, match="was only ever truncated to"):
            query.driver().process(query.checkpoint(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 0)
    assert query.visible() == VISIBLE
    first.process(query.checkpoint(1), Tasks(query, [["d"]]))  # nobody has taken over from it
    assert query.visible() == Counter("abcd")


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
    query: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches NO_ANSWER that is not asked again: without a marker search each would be in doubt."""
    asked = lose_answers(monkeypatch, 3)
    monkeypatch.setattr("sinks.kafka_markers.search", lambda *_, **__: pytest.fail("the answer proves it"))
    query.driver().process(query.checkpoint(0), Tasks(query, ROWS))
    assert len(asked) >= 4
    assert query.visible() == VISIBLE


def test_a_commit_that_is_never_answered_is_proven_by_its_markers(query: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches silence taken for a loss, or for success."""
    lose_answers(monkeypatch, math.inf)
    tasks = Tasks(query, ROWS)
    query.driver().process(query.checkpoint(0), tasks)
    assert (tasks.prepared, tasks.evaluated) == (1, 0)
    assert plans(query) == ["write"]
    assert query.visible() == VISIBLE


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
    """The broker itself aborts them while no driver runs; its answer alone does not tell. The same mutations."""
    with playing(impatient, tmp_path, options={"kafka.transaction.timeout.ms": 2_000}) as query:
        crash(query.driver(), query, 0, ROWS, "driver.decided")
        assert until(lambda: query.open_transactions() == ())
        replay = Tasks(query, ROWS)
        query.driver().process(query.checkpoint(0), replay)
        assert (replay.prepared, replay.evaluated) == (1, 0)
        assert plans(query) == ["write", "rewrite"]
        assert query.visible() == VISIBLE
