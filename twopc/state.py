"""The states of a transaction and of a batch, and the only moves between them.

An illegal move is our bug, not the world's fault: it raises ``AssertionError`` before it can do harm.
The shape (enum, relation, one mutator) is that of aiokafka's ``producer/transaction_manager.py``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar


class TransactionState(Enum):
    """The state of a transaction, as the process that owns it sees it."""

    EMPTY = "empty"  #: not begun; an empty task stays here (rule 8)
    OPEN = "open"  #: begun on the executor; rows may be written
    PREPARED = "prepared"  #: pre-committed: complete and invisible; another process may end it
    HANDED_OVER = "handed over"  #: the driver has the handle; the executor must not end it (rule 6)
    ABORTED = "aborted"  #: ended by its own writer before it handed over the handle


class BatchState(Enum):
    """The state of a batch, as the coordinator sees it."""

    UNDECIDED = "undecided"  #: nothing is decided; what was prepared will be swept
    PREPARED = "prepared"  #: every task voted yes and every vote is confirmed
    DECIDED = "decided"  #: the decision is durable: past the commit point
    COMMITTED = "committed"  #: every decided transaction is proven committed
    LOST = "lost"  #: decided, and at least one transaction is proven lost


State = TypeVar("State", TransactionState, BatchState)

ALLOWED_TRANSITIONS: Final[dict[TransactionState | BatchState, frozenset[TransactionState | BatchState]]] = {
    TransactionState.EMPTY: frozenset({TransactionState.OPEN, TransactionState.ABORTED}),
    TransactionState.OPEN: frozenset({TransactionState.PREPARED, TransactionState.ABORTED}),
    TransactionState.PREPARED: frozenset({TransactionState.HANDED_OVER, TransactionState.ABORTED}),
    TransactionState.HANDED_OVER: frozenset(),
    TransactionState.ABORTED: frozenset(),
    BatchState.UNDECIDED: frozenset({BatchState.PREPARED}),
    BatchState.PREPARED: frozenset({BatchState.DECIDED}),
    BatchState.DECIDED: frozenset({BatchState.COMMITTED, BatchState.LOST}),
    BatchState.LOST: frozenset({BatchState.PREPARED}),
    BatchState.COMMITTED: frozenset(),
}


def move(current: State, to: State) -> State:
    """Check a change of state, and return ``to``. States change only through this function.

    Raises:
        AssertionError: ``to`` cannot follow ``current``.
    """
    if to not in ALLOWED_TRANSITIONS[current]:
        raise AssertionError(f"{type(current).__name__}: cannot change from {current.value} to {to.value}")
    return to
