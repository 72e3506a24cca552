"""The control record changes by compare-and-set: a committer that loses a round reads again before it writes."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from twopc import control
from twopc.attempt import Attempt, Claim, Evidence, Handle, Owner, TaskAttempt
from twopc.control_committer import ControlCommitter
from twopc.errors import ConfigurationError, FencedError, UnavailableError
from twopc.fenced_committer import FencedCommitter, Prepared, driver_epoch_of, transaction_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

FIRST, SECOND = Claim("query-a", "run-1", "log"), Claim("query-b", "run-2", "log")
NOBODY = Owner(None, 0)


class Store:
    """A store without atomic steps. ``meddle`` runs just before the next swap."""

    def __init__(self) -> None:
        self.held: bytes | None = None
        self.meddle: Callable[[], object] | None = None

    @property
    def record(self) -> control.Control:
        return control.decode(self.held)

    def swap(self, old: bytes | None, new: bytes) -> bool:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()
        if self.held != old:
            return False
        self.held = new
        return True


class Committer(ControlCommitter[Handle, Store]):
    def __init__(self, store: Store) -> None:
        super().__init__("s")
        self._store = store

    def step(self) -> AbstractContextManager[Store]:
        return nullcontext(self._store)

    def load(self, step: Store) -> bytes | None:
        return step.held

    def swap(self, step: Store, old: bytes | None, new: bytes) -> bool:
        return step.swap(old, new)

    def decide(self, version: int) -> None:
        self._record_decision(version)

    def confirm(self, handles: Sequence[Handle], age_ms: float) -> None:
        raise NotImplementedError

    def commit(self, handles: Sequence[Handle], scan_start: Mapping[str, Any]) -> Mapping[Handle, Evidence]:
        raise NotImplementedError

    def abort(self, handles: Sequence[Handle]) -> None:
        raise NotImplementedError

    def prove(self, handles: Sequence[Handle], scan_start: Mapping[str, Any]) -> Mapping[Handle, Evidence]:
        raise NotImplementedError

    def recover_and_abort(self, decided: Collection[Handle]) -> None:
        """Nothing to sweep."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def store() -> Store:
    return Store()


def test_another_value_in_place_of_the_record_says_that_a_bound_checkpoint_needs_the_old_name() -> None:
    """A new sink name alone leads to the error that a sink is missing, which asks for the old name again."""
    with pytest.raises(ConfigurationError, match=r"different value .*'v'.*new sink name.*old name.*#new-checkpoint"):
        control.decode(b"v")


def test_a_second_acquisition_is_harmless_and_keeps_the_sinks_id(store: Store) -> None:
    first, second = Committer(store), Committer(store)
    assert first.inspect() == NOBODY
    assert [first.acquire(FIRST, NOBODY), first.acquire(FIRST, NOBODY)] == [1, 1]
    before = first.binding()
    assert second.acquire(SECOND, second.inspect()) == 2
    assert before != {"id": ""}
    assert second.binding() == before


def test_an_acquisition_between_another_drivers_read_and_swap_wins(store: Store) -> None:
    store.meddle = lambda: Committer(store).acquire(SECOND, NOBODY)
    with pytest.raises(FencedError):
        Committer(store).acquire(FIRST, NOBODY)
    assert store.record.run == "run-2"


STEPS: list[Callable[[Committer], object]] = [Committer.begin_attempt, lambda committer: committer.decide(9)]


@pytest.mark.parametrize("step", STEPS)
def test_an_owner_fenced_between_its_read_and_its_swap_changes_nothing(
    step: Callable[[Committer], object], store: Store
) -> None:
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    store.meddle = lambda: Committer(store).acquire(SECOND, Owner("query-a", 1))
    with pytest.raises(FencedError):
        step(owner)
    assert (store.record.run, store.record.version, store.record.decided) == ("run-2", 0, 0)


def test_the_recorded_decision_never_decreases_and_is_kept_only_for_its_own_query(store: Store) -> None:
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    owner.decide(9)
    owner.decide(5)
    assert [owner.has_newer_decision({"base": at, "after": 0}) for at in (8, 9)] == [True, False]
    again = Committer(store)
    again.acquire(Claim("query-a", "run-3", "log"), again.inspect())
    assert store.record.decided == 9
    other = Committer(store)
    other.acquire(SECOND, other.inspect())
    assert store.record.decided == 0


def test_decisions_count_as_missing_from_a_restored_store_if_it_has_lost_more_than_the_newest_one(store: Store) -> None:
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    backups, decisions = [], []
    for _ in range(3):
        backups.append(store.held)
        decisions.append(owner.begin_attempt())
        assert not owner.lacks_decisions(decisions[-1])
        owner.decide(decisions[-1]["base"])
    assert not owner.lacks_decisions(decisions[-1])
    assert not owner.lacks_decisions({})
    found = []
    for store.held in backups:
        found.append(owner.lacks_decisions(decisions[-1]))
    assert found == [True, True, False]


def test_a_query_may_return_to_a_sink_that_another_query_has_used(store: Store) -> None:
    """The record forgets a query's decisions with the query, but no version."""
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    owner.decide(owner.begin_attempt()["base"])
    newest = owner.begin_attempt()
    for claim in (SECOND, Claim("query-a", "run-3", "log")):
        owner = Committer(store)
        owner.acquire(claim, owner.inspect())
    assert (store.record.decided, owner.lacks_decisions(newest)) == (0, False)


def test_a_query_is_replaced_as_soon_as_a_later_owner_has_decided_and_stays_replaced(store: Store) -> None:
    """The second successor has decided nothing, but the first one may have deleted the query's markers."""

    def owned_by(query_id: str, *, decides: bool) -> list[bool]:
        owner = Committer(store)
        owner.acquire(Claim(query_id, f"run-{store.record.driver_epoch}", "log"), owner.inspect())
        attempt = owner.begin_attempt()
        if decides:
            owner.decide(attempt["base"])
            decisions.append((query_id, attempt))
        return [owner.is_replaced(*decision) for decision in decisions]

    decisions: list[tuple[str, Any]] = []
    assert owned_by("query-a", decides=True) == [False]
    assert owned_by("query-b", decides=False) == [False]
    assert owned_by("query-a", decides=True) == [False, False]
    assert owned_by("query-b", decides=True) == [True, True, False]
    assert owned_by("query-c", decides=False) == [True, True, False]
    assert owned_by("query-a", decides=False) == [True, True, False]


def test_an_owner_in_a_store_that_was_restored_to_an_earlier_state_is_not_a_successor(store: Store) -> None:
    """The backup is from before this query's first start, so it names the query that this query ended."""
    ended, successor = Committer(store), Committer(store)
    ended.acquire(FIRST, NOBODY)
    ended.decide(ended.begin_attempt()["base"])
    backup = store.held
    successor.acquire(SECOND, successor.inspect())
    decision = successor.begin_attempt()
    store.held = backup
    assert not successor.is_replaced(SECOND.query_id, decision)


def test_if_two_copies_have_decided_the_first_one_to_commit_keeps_the_newest_decision(store: Store) -> None:
    copies = [Committer(store), Committer(store), Committer(store)]
    decisions = []
    for number, copy in enumerate(copies):
        copy.acquire(Claim("query-a", f"run-{number}", "log"), copy.inspect())
        decisions.append(copy.begin_attempt())
    first, second, third = decisions
    restarted = Committer(store)
    restarted.acquire(Claim("query-a", "run-4", "log"), restarted.inspect())
    restarted.decide(second["base"])
    assert [restarted.has_newer_decision(decision) for decision in ({}, first, second, third)] == [
        True,
        True,
        False,
        True,
    ]
    assert not restarted.has_newer_decision(restarted.begin_attempt())


def test_every_reserved_version_is_above_the_earlier_ones(store: Store) -> None:
    ahead = 4_000_000_000_000
    owner = Committer(store)
    owner.acquire(FIRST, NOBODY)
    owner.initialize_state([], {"base": ahead})
    assert [owner.begin_attempt()["base"] for _ in range(3)] == [ahead + 1, ahead + 2, ahead + 3]


@pytest.mark.parametrize(
    "held", [b"", b"somebody else's", b'{"id":"ours","run":"cut sho', b'{"from":"a later version"}']
)
def test_a_foreign_control_record_stops_the_start_and_is_left_alone(held: bytes, store: Store) -> None:
    store.held = held
    with pytest.raises(ConfigurationError, match="control record"):
        Committer(store).inspect()
    assert store.held == held


def test_the_error_for_a_failure_before_the_decision_identifies_the_sink_and_the_step(store: Store) -> None:
    class Refusing(Committer):
        def load(self, step: Store) -> bytes | None:
            del step
            raise UnavailableError("no answer")

    with pytest.raises(UnavailableError, match="sink 's', reading the sink's owner: no answer"):
        Refusing(store).inspect()
    assert str(Committer(store).explain(TimeoutError(), "sink 's', reading")) == "sink 's', reading: TimeoutError"


def test_a_swap_that_refuses_the_value_just_read_is_reported_as_a_bug_without_an_endless_loop(store: Store) -> None:
    class Refusing(Committer):
        def swap(self, step: Store, old: bytes | None, new: bytes) -> bool:
            del step, old, new
            return False

    with pytest.raises(AssertionError, match="swap"):
        Refusing(store).acquire(FIRST, NOBODY)


class Markers(FencedCommitter[Prepared, Store]):
    """A committer for a store without atomic steps: of a marker's writers, the first one wins."""

    def __init__(self, store: Store, pending: Callable[[], list[str]]) -> None:
        super().__init__("s")
        self._store, self._pending = store, pending
        self.markers: dict[str, Evidence] = {}

    def step(self) -> AbstractContextManager[Store]:
        return nullcontext(self._store)

    def load(self, step: Store) -> bytes | None:
        return step.held

    def swap(self, step: Store, old: bytes | None, new: bytes) -> bool:
        return step.swap(old, new)

    def is_prepared(self, step: Store, handle: Prepared) -> bool:
        del step
        return handle.transaction not in self.markers

    def publish(self, step: Store, handle: Prepared, version: int) -> None:
        del step, version
        self.markers.setdefault(handle.transaction, Evidence.COMMITTED)

    def outcome(self, step: Store, handle: Prepared) -> Evidence:
        del step
        return self.markers.get(handle.transaction, Evidence.UNKNOWN)

    def roll_back(self, step: Store, transaction: str, version: int) -> None:
        del step, version
        self.markers.setdefault(transaction, Evidence.ABORTED)

    def pending(self, step: Store) -> list[str]:
        del step
        return self._pending()


def _name(sink: str, driver_epoch: int) -> str:
    return transaction_name(sink, TaskAttempt("q", 0, Attempt(driver_epoch, 1), 0, driver_epoch, -1))


def test_a_driver_fenced_during_its_sweep_sweeps_no_transaction_of_its_successor(store: Store) -> None:
    """The store has no atomic steps, so the check of the owner comes too early."""
    names = [_name("s", epoch) for epoch in (1, 2)]

    def overtaken() -> list[str]:
        Committer(store).acquire(SECOND, Owner("query-a", 1))
        return names

    loser = Markers(store, overtaken)
    loser.acquire(FIRST, NOBODY)
    loser.recover_and_abort([])
    assert loser.markers == {names[0]: Evidence.ABORTED}
    assert loser.orphans_ended() == 1


def test_a_sweep_spares_a_sink_whose_name_begins_with_this_sinks_name(store: Store) -> None:
    mine, others = _name("s", 1), [_name("s-2", 1), _name("s-1", 1), "s-1-backup", "s-", "s"]
    sink = Markers(store, lambda: [*others, mine])
    sink.acquire(FIRST, NOBODY)
    sink.recover_and_abort([])
    assert sink.markers == {mine: Evidence.ABORTED}


def test_a_commit_that_loses_the_record_to_a_new_driver_publishes_nothing(store: Store) -> None:
    handle = Prepared(_name("s", 1), 1)
    loser = Markers(store, list)
    loser.acquire(FIRST, NOBODY)
    attempt = loser.begin_attempt()
    store.meddle = lambda: Committer(store).acquire(SECOND, Owner("query-a", 1))
    with pytest.raises(FencedError):
        loser.commit([handle], attempt)
    assert loser.markers == {}


class Snapshots(Markers):
    """A step reads the record as it was when the step began, as a transaction of MySQL does by default."""

    @contextmanager
    def step(self) -> Iterator[Store]:
        seen = Store()
        seen.held, seen.swap = self._store.held, self._store.swap  # type: ignore[method-assign]
        yield seen


def test_if_the_steps_of_a_store_read_snapshots_the_next_step_notices_a_new_driver(store: Store) -> None:
    loser = Snapshots(store, list)
    loser.acquire(FIRST, NOBODY)
    attempt = loser.begin_attempt()
    store.meddle = lambda: Committer(store).acquire(SECOND, Owner("query-a", 1))
    with pytest.raises(FencedError):
        loser.commit([Prepared(_name("s", 1), 1)], attempt)
    assert loser.markers == {}


def test_a_decision_without_its_attempt_is_not_committed(store: Store) -> None:
    sink = Markers(store, list)
    sink.acquire(FIRST, NOBODY)
    with pytest.raises(KeyError):
        sink.commit([Prepared(_name("s", 1), 1)], {})
    assert sink.markers == {}


def test_a_transactions_name_is_unique_and_contains_its_driver_epoch() -> None:
    one, other = _name("my-sink_2", 7), _name("my-sink_2", 7)
    assert one != other
    assert [driver_epoch_of(name, "my-sink_2") for name in (one, other)] == [7, 7]
