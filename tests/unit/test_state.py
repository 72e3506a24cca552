"""The states of a transaction, and the writer that holds to them."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest

from tests.unit.fake_sink import FakeWriter, World, record_batch
from twopc.attempt import Attempt, TaskAttempt
from twopc.crash_points import arm
from twopc.state import (
    ALLOWED_TRANSITIONS,
    BATCH_TRANSITIONS,
    BatchState,
    TransactionState,
    move,
    move_batch,
)


@pytest.mark.parametrize(("current", "to"), list(product(TransactionState, TransactionState)))
def test_a_transaction_moves_only_along_the_relation(current: TransactionState, to: TransactionState) -> None:
    if to in ALLOWED_TRANSITIONS[current]:
        assert move(current, to) is to
    else:
        with pytest.raises(AssertionError, match=f"{current.value} cannot become {to.value}"):
            move(current, to)


@pytest.mark.parametrize(("current", "to"), list(product(BatchState, BatchState)))
def test_a_checkpoint_moves_only_along_the_relation(current: BatchState, to: BatchState) -> None:
    if to in BATCH_TRANSITIONS[current]:
        assert move_batch(current, to) is to
    else:
        with pytest.raises(AssertionError, match=f"{current.value} cannot become {to.value}"):
            move_batch(current, to)


def test_what_was_handed_over_or_aborted_is_never_ended_again() -> None:
    assert ALLOWED_TRANSITIONS[TransactionState.HANDED_OVER] == frozenset()
    assert ALLOWED_TRANSITIONS[TransactionState.ABORTED] == frozenset()


def test_only_a_prepared_transaction_is_handed_over() -> None:
    before = [state for state, to in ALLOWED_TRANSITIONS.items() if TransactionState.HANDED_OVER in to]
    assert before == [TransactionState.PREPARED]


def test_only_a_decided_checkpoint_is_committed_and_only_a_prepared_one_is_decided() -> None:
    sources = {to: [s for s, ends in BATCH_TRANSITIONS.items() if to in ends] for to in BatchState}
    assert sources[BatchState.COMMITTED] == [BatchState.DECIDED]
    assert sources[BatchState.DECIDED] == [BatchState.PREPARED]


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


def test_the_first_row_begins_the_transaction_and_later_ones_join_it(writer: FakeWriter, world: World) -> None:
    writer.write_rows(record_batch([1]))
    writer.write_rows(record_batch([2, 3]))
    assert [t.rows for t in world.store().transactions.values()] == [[1, 2, 3]]


@pytest.mark.parametrize("prepared", [True, False])
def test_closing_aborts_what_was_not_handed_over_and_once(*, prepared: bool, writer: FakeWriter, world: World) -> None:
    writer.write_rows(record_batch([1]))
    if prepared:
        writer.snapshot_state(0)
    writer.close()
    writer.close()
    assert (states(world), writer.state) == (["aborted"], TransactionState.ABORTED)


def test_after_the_hand_over_closing_ends_nothing(writer: FakeWriter, world: World) -> None:
    writer.write_rows(record_batch([1]))
    assert writer.snapshot_state(0) is not None
    writer.hand_over()
    writer.close()
    assert (states(world), writer.state) == (["prepared"], TransactionState.HANDED_OVER)


def test_a_writer_makes_one_snapshot(writer: FakeWriter) -> None:
    writer.write_rows(record_batch([1]))
    writer.snapshot_state(0)
    with pytest.raises(AssertionError):
        writer.snapshot_state(0)


def test_a_failed_pre_commit_is_aborted_by_close(writer: FakeWriter, world: World) -> None:
    def fail() -> None:
        raise pa.ArrowInvalid("disk full")

    writer.write_rows(record_batch([1]))
    arm("task.flushed", fail)
    with pytest.raises(pa.ArrowInvalid):
        writer.snapshot_state(0)
    writer.close()
    assert states(world) == ["aborted"]
