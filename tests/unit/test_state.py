"""The transitions of a transaction, and the writer that follows them."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from tests.unit.fake_sink import FakeWriter, World, record_batch
from twopc.attempt import Attempt, TaskAttempt
from twopc.crash_points import arm
from twopc.state import ALLOWED_TRANSITIONS, TransactionState, move
from twopc.testing.crash_points import InjectedFault, arm_from


@pytest.mark.parametrize(("current", "to"), list(product(TransactionState, TransactionState)))
def test_a_transaction_makes_only_allowed_state_transitions(current: TransactionState, to: TransactionState) -> None:
    if to in ALLOWED_TRANSITIONS[current]:
        assert move(current, to) is to
    else:
        with pytest.raises(AssertionError, match=f"cannot change from {current.value} to {to.value}$"):
            move(current, to)


def test_handed_over_and_aborted_transactions_are_never_ended_again() -> None:
    assert ALLOWED_TRANSITIONS[TransactionState.HANDED_OVER] == frozenset()
    assert ALLOWED_TRANSITIONS[TransactionState.ABORTED] == frozenset()


def test_only_a_prepared_transaction_is_handed_over() -> None:
    before = [state for state, to in ALLOWED_TRANSITIONS.items() if TransactionState.HANDED_OVER in to]
    assert before == [TransactionState.PREPARED]


# -- the writer --------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def writer(world: World) -> FakeWriter:
    task = TaskAttempt("a", 0, Attempt(0, 1), partition=0, driver_epoch=1, committed_through=-1)
    return FakeWriter(world, "fake", task)


def states(world: World) -> list[str]:
    return [transaction.state for transaction in world.store().transactions.values()]


def test_an_empty_task_opens_no_transaction_and_has_no_handle(writer: FakeWriter, world: World) -> None:
    writer.write_rows(record_batch([]))
    assert writer.snapshot_state(0) is None
    writer.hand_over()
    writer.close()
    assert (states(world), writer.state) == ([], TransactionState.EMPTY)


def test_all_rows_of_a_task_are_in_one_transaction(writer: FakeWriter, world: World) -> None:
    writer.write_rows(record_batch([1]))
    writer.write_rows(record_batch([2, 3]))
    assert [t.rows for t in world.store().transactions.values()] == [[1, 2, 3]]


@pytest.mark.parametrize("prepared", [True, False])
def test_close_aborts_a_transaction_once_unless_it_was_handed_over(
    *, prepared: bool, writer: FakeWriter, world: World
) -> None:
    writer.write_rows(record_batch([1]))
    if prepared:
        writer.snapshot_state(0)
    writer.close()
    writer.close()
    assert (states(world), writer.state) == (["aborted"], TransactionState.ABORTED)


def test_close_ends_no_transaction_after_the_handover(writer: FakeWriter, world: World) -> None:
    writer.write_rows(record_batch([1]))
    assert writer.snapshot_state(0) is not None
    writer.hand_over()
    writer.close()
    assert (states(world), writer.state) == (["prepared"], TransactionState.HANDED_OVER)


def test_after_its_vote_a_transaction_accepts_neither_a_row_nor_a_second_vote(
    writer: FakeWriter, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_rows(record_batch([1]))
    writer.snapshot_state(0)
    monkeypatch.setattr(writer, "pre_commit", writer.abort)  # pre_commit() must not be called
    with pytest.raises(AssertionError):
        writer.snapshot_state(0)
    with pytest.raises(AssertionError):
        writer.write_rows(record_batch([2]))
    assert [(t.rows, t.state) for t in world.store().transactions.values()] == [([1], "prepared")]


def test_rows_count_once_the_sink_has_accepted_them(writer: FakeWriter) -> None:
    writer.write_rows(record_batch([1]))
    with pytest.raises(KeyError):
        writer.write_rows(pa.record_batch({"other": [2, 3]}))
    assert writer.rows == 1


def test_close_aborts_a_transaction_that_began_and_failed_before_its_first_row(
    writer: FakeWriter, world: World
) -> None:
    arm_from("task.began=raise")
    with pytest.raises(InjectedFault):
        writer.write_rows(record_batch([1]))
    writer.close()
    assert states(world) == ["aborted"]


def test_close_aborts_the_transaction_after_a_failed_pre_commit(writer: FakeWriter, world: World) -> None:
    def fail() -> None:
        raise pa.ArrowInvalid("disk full")

    writer.write_rows(record_batch([1]))
    arm("task.prepared", fail)
    with pytest.raises(pa.ArrowInvalid):
        writer.snapshot_state(0)
    writer.close()
    assert states(world) == ["aborted"]
