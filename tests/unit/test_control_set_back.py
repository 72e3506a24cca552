"""A store goes back to an earlier state while a driver runs. The driver stops before it can hide the loss."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_control import FIRST, NOBODY, SECOND, STEPS, Committer, Markers, Store
from twopc import control, crash_points
from twopc.attempt import Attempt, Claim, Evidence, TaskAttempt
from twopc.errors import FencedError, RestoredError, UnavailableError
from twopc.fenced_committer import Prepared, transaction_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def store() -> Store:
    return Store()


def prepared(number: int) -> Prepared:
    return Prepared(transaction_name("s", TaskAttempt("q", number, Attempt(1, 1), 0, 1, -1)), 1)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("lost", [1, 2])
def test_a_running_driver_stops_before_it_changes_a_store_that_returned_to_an_earlier_state(
    lost: int, step: Callable[[Committer], object], store: Store
) -> None:
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    backups, decisions = [], []
    for _ in range(3):
        backups.append(store.held)
        decisions.append(owner.begin_attempt())
        owner.decide(decisions[-1]["base"])
    store.held = backups[-lost]
    for _ in range(2):
        with pytest.raises(RestoredError, match="sink 's': its store was restored to an older state"):
            step(owner)
    assert store.held == backups[-lost]
    assert owner.lacks_decisions(decisions[-1]) is (lost == 2)


def test_a_start_on_a_store_that_returned_to_an_earlier_state_is_judged_by_its_decisions(store: Store) -> None:
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    owner.decide(owner.begin_attempt()["base"])
    backup = store.held
    newest = owner.begin_attempt()
    store.held = backup
    again = Committer(store)
    again.acquire(Claim("query-a", "run-3", "log"), again.inspect())
    assert not again.lacks_decisions(newest)
    again.decide(again.begin_attempt()["base"])


def test_a_driver_that_was_lost_with_the_newer_state_blames_no_other_driver(store: Store) -> None:
    Committer(store).acquire(FIRST, NOBODY)
    backup = store.held
    owner = Committer(store)
    owner.acquire(SECOND, owner.inspect())
    store.held = backup
    with pytest.raises(RestoredError):
        owner.begin_attempt()


class Unanswered(Markers):
    """The response to the next commit is lost."""

    is_lost = False

    @contextmanager
    def step(self) -> Iterator[Store]:
        yield self._store
        if self.is_lost:
            self.is_lost = False
            raise UnavailableError("no answer")


@pytest.mark.parametrize("is_written", [True, False])
def test_a_change_without_a_response_is_not_mistaken_for_a_lost_one(store: Store, *, is_written: bool) -> None:
    owner = Unanswered(store, list)
    owner.acquire(FIRST, NOBODY)
    before = store.held
    owner.is_lost = True
    with pytest.raises(UnavailableError):
        owner.begin_attempt()
    assert store.held != before
    if not is_written:
        store.held = before
    owner._record_decision(owner.begin_attempt()["base"])
    assert store.record.decided == store.record.version


def test_the_loss_of_a_commit_that_only_its_marker_proved_is_noticed(store: Store) -> None:
    owner = Unanswered(store, list)
    owner.acquire(FIRST, NOBODY)
    one, other = prepared(0), prepared(1)
    attempt = owner.begin_attempt()
    backup, owner.is_lost = store.held, True
    assert owner.commit([one], attempt) == {one: Evidence.COMMITTED}
    assert owner.blockers() == ["sink 's', no answer"]
    store.held, owner.markers = backup, {}
    with pytest.raises(RestoredError):
        owner.begin_attempt()
    with pytest.raises(RestoredError):
        owner.confirm([other], 0)


def test_the_loss_of_a_repair_is_noticed(store: Store) -> None:
    """A repair keeps its batch's decision, so only the revision shows that its rows were published later."""
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    lost, again, attempt = prepared(0), prepared(1), owner.begin_attempt()
    owner.roll_back(store, lost.transaction, 0)
    assert owner.commit([lost], attempt) == {lost: Evidence.ABORTED}
    backup, markers = store.held, dict(owner.markers)
    assert owner.commit([again], attempt) == {again: Evidence.COMMITTED}
    store.held, owner.markers = backup, markers
    with pytest.raises(RestoredError):
        owner.begin_attempt()


def test_a_decision_that_a_failover_loses_before_its_proof_is_recorded_again(store: Store) -> None:
    """On Redis, only the proof waits for the replicas. Its rows are not proven, so they are applied again."""
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    attempt, handle = owner.begin_attempt(), prepared(0)
    before = store.held
    owner._record_decision(attempt["base"])
    store.held = before
    assert owner.commit([handle], attempt) == {handle: Evidence.COMMITTED}
    assert store.record.decided == store.record.version


def test_a_decided_batch_stays_decided_when_its_store_returns_to_an_earlier_state(store: Store) -> None:
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    backup = store.held
    attempt, handle = owner.begin_attempt(), prepared(0)
    store.held = backup
    assert owner.notify_checkpoint_complete(0, [handle], attempt) == {handle: Evidence.UNKNOWN}
    assert len(owner.blockers()) == 1
    assert "restored to an older state" in owner.blockers()[0]
    assert (store.held, owner.markers) == (backup, {})


def test_a_sweep_of_a_store_that_returned_to_an_earlier_state_logs_why_it_did_nothing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    handle = prepared(0)
    owner = Markers(store, lambda: [handle.transaction])
    owner.acquire(FIRST, NOBODY)
    backup = store.held
    owner.begin_attempt()
    store.held = backup
    with caplog.at_level(logging.WARNING):
        owner.recover_and_abort([])
        owner.abort([handle])
    assert owner.markers == {}
    assert [record.getMessage().rpartition(". Because of this, ")[2] for record in caplog.records] == [
        "sweeping was skipped",
        "aborting was skipped",
    ]


def test_a_driver_fenced_by_another_one_raises_an_error_that_says_so(store: Store) -> None:
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    attempt: Any = owner.begin_attempt()
    other = Committer(store)
    other.acquire(SECOND, other.inspect())
    with pytest.raises(FencedError):
        owner.notify_checkpoint_complete(0, [prepared(0)], attempt)


def test_a_store_that_returns_to_the_middle_of_a_commit_is_refused(store: Store) -> None:
    """Its record already contains the decision, but not that the batch was proven complete."""
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    attempt, handles, states = owner.begin_attempt(), [prepared(0), prepared(1)], []
    crash_points.arm("driver.committing", lambda: states.append(store.held))
    assert set(owner.commit(handles, attempt).values()) == {Evidence.COMMITTED}
    middle, complete = states[0], store.held
    following = owner.begin_attempt()
    for held, is_behind in ((middle, True), (complete, False)):
        store.held = held
        assert control.decode(held).decided == attempt["base"]
        assert Committer(store).lacks_decisions(following) is is_behind
        assert not Committer(store).lacks_decisions(attempt)


def test_a_store_that_returns_to_the_time_before_a_repair_is_refused(store: Store) -> None:
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    lost, again, attempt = prepared(0), prepared(1), owner.begin_attempt()
    owner.roll_back(store, lost.transaction, 0)
    assert owner.commit([lost], attempt) == {lost: Evidence.ABORTED}
    before_repair = store.held
    assert owner.commit([again], attempt) == {again: Evidence.COMMITTED}
    following = owner.begin_attempt()
    store.held = before_repair
    assert Committer(store).lacks_decisions(following)


def test_a_batch_without_rows_in_the_sink_does_not_hide_that_the_store_returned_to_the_middle_of_a_commit(
    store: Store,
) -> None:
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    attempt, handle = owner.begin_attempt(), prepared(0)
    owner._record_decision(attempt["base"])
    middle = store.held
    assert owner.commit([handle], attempt) == {handle: Evidence.COMMITTED}
    for _ in range(2):
        without_rows = owner.begin_attempt()
    store.held = middle
    assert Committer(store).lacks_decisions(without_rows)


def test_a_query_that_returns_after_another_query_has_touched_the_older_store_is_refused(store: Store) -> None:
    """The other query's attempt has raised the version in the record, but it has not brought the rows back."""
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    attempt, handle = owner.begin_attempt(), prepared(0)
    owner._record_decision(attempt["base"])
    middle = store.held
    assert owner.commit([handle], attempt) == {handle: Evidence.COMMITTED}
    following = owner.begin_attempt()
    for held, is_behind in ((middle, True), (store.held, False)):
        store.held = held
        other = Committer(store)
        other.acquire(SECOND, other.inspect())
        other.begin_attempt()
        assert store.record.version >= following["base"]
        assert Committer(store).lacks_decisions(following) is is_behind


def test_an_older_store_stays_older_if_another_query_completes_the_newest_decision(store: Store) -> None:
    owner = Markers(store, list)
    owner.acquire(FIRST, NOBODY)
    first, one = owner.begin_attempt(), prepared(0)
    owner._record_decision(first["base"])
    middle = store.held
    assert owner.commit([one], first) == {one: Evidence.COMMITTED}
    newest, other = owner.begin_attempt(), prepared(1)
    store.held = middle
    successor = Markers(store, list)
    successor.acquire(SECOND, successor.inspect())
    assert successor.initialize_state([other], newest, is_own=False) == {other: Evidence.COMMITTED}
    assert Committer(store).lacks_decisions(newest)


class Buffered(Markers):
    """Its step collects the writes. A step sees the store as it was before, and its swaps do not compare."""

    @contextmanager
    def step(self) -> Iterator[Store]:
        self._collected = self._store.held
        yield self._store
        self._store.held = self._collected

    def swap(self, step: Store, old: bytes | None, new: bytes) -> bool:
        del step, old
        self._collected = new
        return True


def test_a_proof_in_a_step_that_sees_the_old_record_keeps_the_decision(store: Store) -> None:
    owner = Buffered(store, list)
    owner.acquire(FIRST, NOBODY)
    attempt, handle = owner.begin_attempt(), prepared(0)
    assert owner.commit([handle], attempt) == {handle: Evidence.COMMITTED}
    assert store.record.decided == attempt["base"]
