"""The states of a writer's transaction, and the allowed transitions between them.

An illegal transition is a bug in this toolkit. Such a transition raises ``AssertionError`` before it can do any harm.
The design (an enum, a table of transitions, and one function that changes the state) follows aiokafka's
``producer/transaction_manager.py``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class TransactionState(Enum):
    """The state of a transaction, as seen by the process that writes it."""

    EMPTY = "empty"  #: not begun; an empty task stays here (rule 8)
    OPEN = "open"  #: begun on the executor; rows may be written
    PREPARED = "prepared"  #: pre-committed: complete and invisible; another process may end it
    HANDED_OVER = "handed over"  #: the driver has the handle; the executor must not end the transaction (rule 6)
    ABORTED = "aborted"  #: ended by its own writer before it handed over the handle


ALLOWED_TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset({TransactionState.OPEN}),
    TransactionState.OPEN: frozenset({TransactionState.PREPARED, TransactionState.ABORTED}),
    TransactionState.PREPARED: frozenset({TransactionState.HANDED_OVER, TransactionState.ABORTED}),
    TransactionState.HANDED_OVER: frozenset(),
    TransactionState.ABORTED: frozenset(),
}


def move(current: TransactionState, to: TransactionState) -> TransactionState:
    """Check a transition, and return ``to``. States change only through this function.

    Raises:
        AssertionError: ``to`` cannot follow ``current``.
    """
    if to not in ALLOWED_TRANSITIONS[current]:
        raise AssertionError(f"a transaction cannot change from {current.value} to {to.value}")
    return to
