"""One transaction of one task attempt, on an executor: begin, write, pre-commit; or abort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic

from twopc.crash_points import crash_point
from twopc.handle import HandleT
from twopc.state import TransactionState, move

if TYPE_CHECKING:
    import pyarrow as pa


class SinkWriter(ABC, Generic[HandleT]):
    """One transaction of one task attempt. Used by one thread, once.

    Subclasses write the four hooks; callers use :meth:`write_rows`, :meth:`snapshot_state`, :meth:`hand_over` and
    :meth:`close`, which hold the order (see ``twopc.state``).
    """

    state: TransactionState = TransactionState.EMPTY

    @abstractmethod
    def begin_transaction(self) -> None:
        """Open the transaction. Called before the first row, never for an empty task. May fail; not repeated."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows into the open transaction, invisibly. May fail, may block; memory must not grow with the task.

        Raises:
            RetriableError: the task may be tried again.
            BadRecordError: a record can never be written.
        """

    @abstractmethod
    def pre_commit(self) -> HandleT:
        """Make all rows durable, still invisible, so that another process can commit them without this one.

        The vote: returning means "yes". May fail with the errors of :meth:`write`; not repeated.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give the transaction up. Must not raise; what it cannot end is left to the driver's sweep."""

    def write_rows(self, rows: pa.RecordBatch) -> None:
        """Write, beginning the transaction with the first row (rule 8)."""
        if rows.num_rows == 0:
            return
        if self.state is TransactionState.EMPTY:
            self.begin_transaction()
            self.state = move(self.state, TransactionState.OPEN)
        self.write(rows)

    def snapshot_state(self, batch_id: int) -> HandleT | None:
        """Pre-commit this task's part of the checkpoint.

        Returns:
            the handle, or None for an empty task, which has no transaction.
        """
        del batch_id  # a writer serves one checkpoint, which it was created for
        if self.state is TransactionState.EMPTY:
            return None
        handle = self.pre_commit()
        self.state = move(self.state, TransactionState.PREPARED)
        return handle

    def hand_over(self) -> None:
        """Tell the writer that its handle is leaving: from here on it ends nothing (rule 6)."""
        if self.state is TransactionState.PREPARED:
            self.state = move(self.state, TransactionState.HANDED_OVER)
            crash_point("task.handed_over")

    def close(self) -> None:
        """Abort what was neither handed over nor ended. Safe to call at any time, any number of times."""
        if self.state in {TransactionState.OPEN, TransactionState.PREPARED}:
            self.abort()
            self.state = move(self.state, TransactionState.ABORTED)
