"""A writer handles one task attempt's transaction on an executor: it begins, writes and pre-commits, or it aborts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic

from twopc.attempt import HandleT
from twopc.crash_points import crash_point
from twopc.state import TransactionState, move

if TYPE_CHECKING:
    import pyarrow as pa


class SinkWriter(ABC, Generic[HandleT]):
    """One task attempt's transaction. One thread uses each writer once.

    A sink implements the four hooks. Callers use :meth:`write_rows`, :meth:`snapshot_state`, :meth:`hand_over` and
    :meth:`close`, which enforce the order (see ``twopc.state``) and pass the crash points between the hooks.
    """

    state: TransactionState = TransactionState.EMPTY
    #: How many rows :meth:`write` has accepted.
    rows: int = 0

    @abstractmethod
    def begin_transaction(self) -> None:
        """Open the transaction, before the first row; an empty task opens none. The call may fail, and is never retried."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows into the open transaction, invisibly. May fail or block. Memory use must not grow with the task.

        Raises:
            RetriableError: the task may be retried.
            BadRecordError: a record can never be written.
        """

    @abstractmethod
    def pre_commit(self) -> HandleT | None:
        """Make all rows durable but still invisible, so that another process can commit them without this one.

        This call is the task's vote: returning means "yes". The call may raise the same errors as :meth:`write`, and is
        never retried. None means that the rows are already visible, because the user asked for a weaker guarantee, so
        nothing remains to commit.
        """

    @abstractmethod
    def abort(self) -> None:
        """Abort the transaction. Must not raise; if the abort fails, the driver sweeps the transaction."""

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Write rows; the first row begins the transaction (rule 8)."""
        if rows.num_rows == 0:
            return
        if self.state is TransactionState.EMPTY:
            self.begin_transaction()
            self.state = move(self.state, TransactionState.OPEN)
            crash_point("task.began")
        elif self.state is not TransactionState.OPEN:
            raise AssertionError(f"rows cannot be added to a transaction that is {self.state.value}")
        self.write(rows)
        self.rows += rows.num_rows

    def snapshot_state(self, batch_id: int) -> HandleT | None:
        """Pre-commit this task's part of the batch.

        Returns:
            the handle; None if there is no transaction, as for an empty task.
        """
        del batch_id  # a writer serves the one batch that it was created for
        if self.state is TransactionState.EMPTY:
            return None
        prepared = move(self.state, TransactionState.PREPARED)  # first: a second vote must not reach the store
        crash_point("task.written")
        handle = self.pre_commit()
        crash_point("task.flushed")
        crash_point("task.prepared")
        self.state = prepared
        return handle

    def hand_over(self) -> None:
        """Mark the handle as handed over. After this, the writer must not end the transaction (rule 6)."""
        if self.state is TransactionState.PREPARED:
            self.state = move(self.state, TransactionState.HANDED_OVER)
            crash_point("task.handed_over")

    def close(self) -> None:
        """Abort a transaction that was neither handed over nor ended. May be called at any time, any number of times."""
        if self.state in {TransactionState.OPEN, TransactionState.PREPARED}:
            self.abort()
            self.state = move(self.state, TransactionState.ABORTED)
