"""Define the coordinator's interfaces to the engine, which runs the tasks, and to the store for staged rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from twopc.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from twopc.attempt import Attempt, Place, TaskKey
    from twopc.batch import Batch
    from twopc.records import TaskReport


@dataclass(frozen=True)
class Write:
    """Evaluate the batch, and write every task's rows to every sink."""

    def includes(self, transaction: TaskKey) -> bool:
        """Whether the attempt writes the rows of this transaction."""
        del transaction
        return True


@dataclass(frozen=True)
class Repair:
    """Evaluate the batch and report every partition of the plan, but write only the rows of the lost partitions (rule 9).

    Attributes:
        lost: for each sink name, the partitions whose rows are written. In this attempt, any task may produce these rows.
        first_task: the number of the attempt's first task. This number is higher than the task numbers in the decision,
            because a sink may identify a transaction by its task's number.
        direct: the DataFrames that the driver must write, each as one task. The driver also wrote these DataFrames for the
            decision. The repair must form the same partitions, because it compares each partition's row count and checksum with
            those in the decision.
    """

    lost: Mapping[str, frozenset[Place]]
    first_task: int
    direct: frozenset[str]

    def includes(self, transaction: TaskKey) -> bool:
        """Whether the attempt writes the rows of this transaction.

        Call this method only if the batch has one DataFrame and each task's number is the number of its partition.
        """
        sink, partition = transaction
        return ("", partition) in self.lost.get(sink, ())


@dataclass(frozen=True)
class Publish:
    """Write the lost rows from the files that the tasks staged. The batch is not evaluated (rule 9).

    Attributes:
        lost: the transactions to write again.
        tasks: the decided tasks that staged the rows. For each decided task, the attempt has one task with the same
            partition number.
    """

    lost: frozenset[TaskKey]
    tasks: tuple[TaskReport, ...]

    def includes(self, transaction: TaskKey) -> bool:
        """Whether the attempt writes the rows of this transaction."""
        return transaction in self.lost


Mode = Write | Repair | Publish


@dataclass(frozen=True)
class Work:
    """One attempt at a batch, as the engine hands it to its tasks.

    Attributes:
        driver_epochs: for each sink name, the epoch that this driver acquired for the sink.
        committed_through: the highest batch that this driver has proven to be completely committed; -1 if there is no such
            batch.
        mode: which rows are written, and where they come from.
        timeout_ms: how long pre-commit may take in total; None if no sink's transactions expire.
        pending: the recorder of the tasks' votes.
    """

    batch: Batch
    attempt: Attempt
    driver_epochs: dict[str, int]
    committed_through: int
    mode: Mode
    timeout_ms: float | None
    pending: Pending = field(default_factory=Pending)

    def number_of(self, task: int) -> int:
        """Return the number under which the sinks track a task's transactions: ``TaskAttempt.partition``."""
        return task + (self.mode.first_task if isinstance(self.mode, Repair) else 0)


class Engine(Protocol):
    """Runs a batch's tasks."""

    def prepare(self, work: Work) -> Sequence[TaskReport]:
        """Write the rows that ``work.mode`` selects, pre-commit every task, and return the accepted tasks' reports.

        Raises:
            RetriableError: the attempt has failed; a new attempt may succeed.
            FatalError: a new attempt would fail again.
        """

    def evaluate(self) -> None:
        """Evaluate the batch once and discard the rows. A stateful plan must be evaluated to write its new state."""


class StagedRows(Protocol):
    """The rows that tasks retain until their transactions are proven (``staging=True``), in one file for each task attempt.

    A task's report contains the name of the task's staged file. The engine's tasks write and read these files.
    """

    def has(self, name: str) -> bool:
        """Whether the staged file exists and is complete."""

    def release(self, driver_epoch: int, batch_id: int) -> None:
        """Try to delete rows that this and earlier drivers staged for batches up to the proven batch ``batch_id``.

        This method must not raise.
        """

    def discard(self, driver_epoch: int, decided: Collection[str]) -> None:
        """Try to delete all rows that this and earlier drivers staged, except the ``decided`` files.

        No decision names the other files, and no decision ever will. This method must not raise.
        """
