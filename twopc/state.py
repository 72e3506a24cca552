"""The states of a transaction, and the only moves between them.

An illegal move is a bug of ours, not of the world: it raises ``AssertionError`` at once, before it can do harm.
The shape (enum, relation, one mutator) is that of aiokafka's ``producer/transaction_manager.py``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class TransactionState(Enum):
    """Where a transaction stands, seen from the process that owns it at that time."""

    EMPTY = "empty"  #: not begun: nothing exists in the sink (rule 8: an empty task stays here)
    OPEN = "open"  #: begun on the executor, rows may be written
    PREPARED = "prepared"  #: pre-committed: complete, invisible, may be ended by another process
    HANDED_OVER = "handed over"  #: the driver has the handle; the executor ends nothing any more (rule 6)
    ABORTED = "aborted"  #: ended by its own writer before the handle was handed over


ALLOWED_TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset({TransactionState.OPEN, TransactionState.ABORTED}),
    TransactionState.OPEN: frozenset({TransactionState.PREPARED, TransactionState.ABORTED}),
    TransactionState.PREPARED: frozenset({TransactionState.HANDED_OVER, TransactionState.ABORTED}),
    TransactionState.HANDED_OVER: frozenset(),
    TransactionState.ABORTED: frozenset(),
}


class BatchState(Enum):
    """Where a checkpoint (a batch) stands, seen from the coordinator."""

    UNDECIDED = "undecided"  #: nothing is decided; whatever was prepared will be swept
    PREPARED = "prepared"  #: every task voted and every vote was confirmed
    DECIDED = "decided"  #: the decision is durable: the commit point is passed
    COMMITTED = "committed"  #: every transaction of the decision is proven committed
    LOST = "lost"  #: decided, and at least one of its transactions is proven lost


BATCH_TRANSITIONS: Final[dict[BatchState, frozenset[BatchState]]] = {
    BatchState.UNDECIDED: frozenset({BatchState.PREPARED}),
    BatchState.PREPARED: frozenset({BatchState.DECIDED}),
    BatchState.DECIDED: frozenset({BatchState.COMMITTED, BatchState.LOST}),
    BatchState.LOST: frozenset({BatchState.PREPARED}),
    BatchState.COMMITTED: frozenset(),
}


def move(current: TransactionState, to: TransactionState) -> TransactionState:
    """The one mutator of a transaction's state: returns ``to``.

    Raises:
        AssertionError: ``to`` cannot follow ``current``.
    """
    if to not in ALLOWED_TRANSITIONS[current]:
        raise AssertionError(f"a transaction that is {current.value} cannot become {to.value}")
    return to


def move_batch(current: BatchState, to: BatchState) -> BatchState:
    """The one mutator of a checkpoint's state: returns ``to``.

    Raises:
        AssertionError: ``to`` cannot follow ``current``.
    """
    if to not in BATCH_TRANSITIONS[current]:
        raise AssertionError(f"a batch that is {current.value} cannot become {to.value}")
    return to
