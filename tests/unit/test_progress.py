"""The reports of a coordinator to its listeners, and the text of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import die_at, fail
from tests.unit.fake_sink import Cluster, Query, all_rows, batch_of
from twopc.errors import BadRecordError, CheckpointExpiredError, RetriableError
from twopc.listeners import Listener, explain
from twopc.pending import Pending
from twopc.progress import Acknowledgement, Checkpoint, describe
from twopc.settings import Settings
from twopc.testing.crash_points import InjectedFault, arm

if TYPE_CHECKING:
    from twopc.engine import Work
    from twopc.events import Triggered
    from twopc.records import TaskReport


class Recording(Listener):
    def __init__(self) -> None:
        self.told: list[int | Checkpoint] = []

    def triggered(self, checkpoint: Triggered) -> None:
        self.told.append(checkpoint.batch_id)

    def ended(self, checkpoint: Checkpoint) -> None:
        self.told.append(checkpoint)

    @property
    def last(self) -> Checkpoint:
        last = self.told[-1]
        assert isinstance(last, Checkpoint)
        return last


class Broken(Listener):
    def triggered(self, checkpoint: Triggered) -> None:
        raise OSError(f"no space left at checkpoint {checkpoint.batch_id}")

    def ended(self, checkpoint: Checkpoint) -> None:
        raise OSError(f"no space left at checkpoint {checkpoint.batch_id}")

    def close(self) -> None:
        raise OSError("no space left")


@pytest.fixture
def seen() -> Recording:
    return Recording()


@pytest.fixture
def query(cluster: Cluster, seen: Recording) -> Query:
    return cluster.start(listeners=[seen])


def test_a_completed_checkpoint_is_reported_with_its_phases_and_counts(query: Query, seen: Recording) -> None:
    query.run(0, 1)
    first, second = seen.told[1], seen.told[3]
    assert seen.told[::2] == [0, 1]
    assert isinstance(first, Checkpoint)
    assert isinstance(second, Checkpoint)
    assert list(first.phases) == ["inspect", "acquire", "recover", "prepare", "confirm", "decide", "commit", "finish"]
    assert list(second.phases) == ["prepare", "confirm", "decide", "commit", "finish"]
    assert (second.outcome, second.way, second.steps, second.cause) == ("completed", "tasks", ("write",), None)
    assert (second.tasks, second.transactions, second.rows) == (3, 3, 6)
    assert first.pause_ms is None
    assert second.pause_ms is not None
    assert sum(second.phases.values()) <= second.took_ms


def test_a_replay_that_writes_nothing_has_no_steps_and_reports_an_evaluation(cluster: Cluster, seen: Recording) -> None:
    die_at(cluster, cluster.start(), "driver.committed", 0)
    cluster.start(listeners=[seen]).run(0)
    assert (seen.last.outcome, seen.last.steps, seen.last.rows) == ("completed", (), 0)
    assert "evaluate" in seen.last.phases


def test_orphans_ended_at_startup_are_counted_even_if_no_batch_has_run_yet(cluster: Cluster) -> None:
    die_at(cluster, cluster.start(), "driver.prepared", 0)
    query, pending, batch = cluster.start(), Pending(), batch_of(0)
    query.coordinator.start(batch, pending)
    assert pending.ended(None).orphans_ended == 3
    query.coordinator.process(batch, query.engine, pending)
    assert pending.ended(None).orphans_ended == 3


def test_the_report_of_a_repaired_checkpoint_names_the_repair_step(cluster: Cluster, seen: Recording) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    cluster.start(listeners=[seen]).run(0)
    assert seen.last.steps == ("repair",)


def test_a_retried_attempt_appears_in_the_record_of_the_completed_checkpoint(query: Query, seen: Recording) -> None:
    query.engine.failures = [RetriableError("a broker was away")]
    query.run(0)
    (failed,) = seen.last.failed_attempts
    assert (seen.last.outcome, failed.reason, failed.phase, failed.message) == (
        "completed",
        "failed",
        "prepare",
        "a broker was away",
    )


def test_a_failed_checkpoint_is_reported_and_its_error_has_the_facts(query: Query, seen: Recording) -> None:
    query.run(0)
    query.engine.failures = [BadRecordError("row 7 is too large")]
    with pytest.raises(BadRecordError) as failure:
        query.run(1)
    cause = seen.last.cause
    assert cause is not None
    assert (seen.last.status, cause.reason, cause.error) == ("failed", "failed", "BadRecordError")
    assert cause.message == "row 7 is too large"
    message = str(failure.value)
    assert message.startswith("row 7 is too large. Checkpoint 1 was triggered at 2")
    assert "and failed at" in message
    assert "(prepare " in message


def test_orphans_ended_by_sweeps_are_counted_once(cluster: Cluster, seen: Recording) -> None:
    """They include those of a dead driver at the start, and those of a failed attempt, even across two sinks."""
    die_at(cluster, cluster.start("one", "two"), "driver.confirmed", 0)
    query = cluster.start("one", "two", listeners=[seen])
    query.run(0)
    assert seen.last.orphans_ended == 6
    query.run(1)
    assert seen.last.orphans_ended == 0
    arm("task.prepared", fail, passage=3)
    with pytest.raises(InjectedFault):
        query.run(2)
    assert (seen.last.status, seen.last.orphans_ended) == ("failed", 2)  # the third task has ended its own transaction


class Declining:
    """An engine whose task votes no."""

    def __init__(self, query: Query) -> None:
        self._engine = query.engine

    def prepare(self, work: Work) -> list[TaskReport]:
        work.pending.acknowledged(
            [Acknowledgement(partition=4, rows=9, took_ms=1500.0, read_ms=300.0, flush_ms=1100.0)]
        )
        work.pending.declined()
        raise BadRecordError("task 5: row 7 is too large")

    def evaluate(self) -> None:
        self._engine.evaluate()


def test_the_error_of_a_declined_checkpoint_identifies_the_slowest_task(query: Query, seen: Recording) -> None:
    engine = Declining(query)
    query.engine.prepare = engine.prepare  # type: ignore[method-assign]
    with pytest.raises(
        BadRecordError, match=r"declined at .* 4\. It took 1\.5 s for 9 rows, .* 300 ms .* 1\.1 s flushing"
    ):
        query.run(0)
    assert seen.last.outcome == "declined"


def test_a_late_vote_is_counted_and_its_transaction_is_aborted(cluster: Cluster, query: Query, seen: Recording) -> None:
    prepare = query.engine.prepare

    def too_late(work: Work) -> list[TaskReport]:
        raise CheckpointExpiredError("too slow", late=prepare(work))

    query.engine.prepare = too_late  # type: ignore[method-assign]
    ended: list[int] = []
    committer = query.coordinator.participants.committers["fake"]
    abort = committer.abort
    committer.abort = lambda handles: (ended.append(len(handles)), abort(handles))[1]  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(CheckpointExpiredError, match=r"expired at .*3 acknowledgements arrived late"):
        query.run(0)
    assert seen.last.cause is not None
    assert (seen.last.outcome, seen.last.cause.late, ended) == ("expired", 3, [3])
    assert (cluster.store.pending(), cluster.store.visible()) == ([], [])
    query.engine.prepare = prepare  # type: ignore[method-assign]
    query.run(0)
    assert cluster.store.visible() == all_rows(0)


def test_a_failing_listener_stops_nothing_and_is_reported_once(
    cluster: Cluster, seen: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    query = cluster.start(listeners=[Broken(), seen])
    query.run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert len(seen.told) == 4
    assert [record.getMessage() for record in caplog.records if "Broken" in record.getMessage()] == [
        "Broken failed. The query continues. This warning appears only once. Cause: OSError('no space left at checkpoint 0')"
    ]


def test_a_record_stays_small_even_for_a_large_batch(cluster: Cluster, seen: Recording) -> None:
    query = cluster.start(listeners=[seen], settings=Settings(max_attempts=20))
    prepare = query.engine.prepare

    def slow(work: Work) -> list[TaskReport]:
        reports = prepare(work)
        work.pending.acknowledged([Acknowledgement(partition=number, took_ms=number) for number in range(1000)])
        return reports

    query.engine.prepare = slow  # type: ignore[method-assign]
    query.engine.failures = [RetriableError("x" * 100_000) for _ in range(19)]
    query.run(0)
    assert [vote.partition for vote in seen.last.slowest] == [999, 998, 997, 996, 995]
    assert seen.last.median_ms == 499
    assert len(seen.last.failed_attempts) == 5
    assert max(len(failed.message) for failed in seen.last.failed_attempts) <= 4_003


def test_the_limit_and_its_setting_are_part_of_the_facts() -> None:
    pending = Pending(7)
    pending.limited(600_000, "CheckpointConfig.timeout_ms", planned=None)
    text = describe(pending.ended(CheckpointExpiredError("too slow")))
    assert text.startswith("Checkpoint 7 was triggered at ")
    assert text.endswith("The checkpoint's time limit was 600.0 s, set by CheckpointConfig.timeout_ms")


def test_notes_about_an_attempt_are_not_carried_over_to_its_retry(query: Query, seen: Recording) -> None:
    prepare = query.engine.prepare

    def decline_first(work: Work) -> list[TaskReport]:
        work.pending.acknowledged([Acknowledgement(partition=0, took_ms=9.0)])
        if not query.engine.works:
            work.pending.declined()
        query.engine.failures = [RetriableError("away")] if not query.engine.works else [BadRecordError("no")]
        return prepare(work)

    query.engine.prepare = decline_first  # type: ignore[method-assign]
    with pytest.raises(BadRecordError):
        query.run(0)
    assert [failed.reason for failed in seen.last.failed_attempts] == ["declined"]
    assert (seen.last.outcome, len(seen.last.slowest)) == ("failed", 1)


class NamelessError(Exception):
    def __str__(self) -> str:
        raise OSError("the JVM is gone")


def test_an_error_whose_message_cannot_be_read_is_still_raised(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    query.engine.failures = [NamelessError()]
    with pytest.raises(NamelessError):
        query.run(0)
    assert [record.getMessage() for record in caplog.records if "JVM is gone" in record.getMessage()]


def test_the_facts_are_added_to_an_error_once_even_if_a_run_in_doubt_raises_it_again() -> None:
    error = RetriableError("no answer")
    for batch in (3, 4):
        explain(error, Pending(batch).ended(error))
    assert str(error).count("was triggered at") == 1
