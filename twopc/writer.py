"""Define the writer, which handles one task attempt's transaction on an executor."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic

from twopc.attempt import HandleT
from twopc.crash_points import crash_point
from twopc.state import TransactionState, move

if TYPE_CHECKING:
    import pyarrow as pa


class SinkWriter(ABC, Generic[HandleT]):
    """Handles one task attempt's transaction. Each writer is used once, by one thread.

    A sink implements the four hooks. Callers use :meth:`write_rows`, :meth:`snapshot_state`, :meth:`hand_over` and
    :meth:`close`, which enforce the order (see ``twopc.state``) and call the crash points between the hooks.
    """

    state: TransactionState = TransactionState.EMPTY
    #: How many rows :meth:`write` has accepted.
    rows: int = 0

    @abstractmethod
    def begin_transaction(self) -> None:
        """Open the transaction, before the first row. An empty task does not open a transaction.

        The call may fail, and is never retried.
        """

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows into the open transaction. The rows stay invisible. The call may fail or block.

        Memory use must not grow with the number of rows in the task.

        Raises:
            RetriableError: the task may be retried.
            BadRecordError: a record can never be written.
        """

    @abstractmethod
    def pre_commit(self) -> HandleT | None:
        """Make all rows durable but keep them invisible, so that another process can commit them without this process.

        This call is the task's vote. If it returns without an error, the task votes "yes". The call may raise the same
        errors as :meth:`write`, and is never retried. If the method returns None, the rows are already visible because
        the user chose a weaker guarantee. There is then no transaction to commit.
        """

    @abstractmethod
    def abort(self) -> None:
        """Abort the transaction. This method must not raise.

        If the abort fails, the driver's sweep ends the transaction later.
        """

    def letter_max_bytes(self) -> int:
        """Return the maximum size of a dead letter that the store accepts: its value, and its headers' keys and values, in bytes.

        The engine shortens a dead letter to this size, and to its own limit. The call may contact the store.
        """
        return sys.maxsize

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
        prepared = move(self.state, TransactionState.PREPARED)  # before a second vote can reach the store
        crash_point("task.written")
        handle = self.pre_commit()
        crash_point("task.prepared")
        self.state = prepared
        return handle

    def hand_over(self) -> None:
        """Record that the handle was handed over. After this call, the writer must not end the transaction (rule 6)."""
        if self.state is TransactionState.PREPARED:
            self.state = move(self.state, TransactionState.HANDED_OVER)
            crash_point("task.handed_over")

    def close(self) -> None:
        """Abort the transaction, unless it was handed over or has ended.

        This method may be called at any time and repeatedly.
        """
        if self.state in {TransactionState.OPEN, TransactionState.PREPARED}:
            self.abort()
            self.state = move(self.state, TransactionState.ABORTED)
