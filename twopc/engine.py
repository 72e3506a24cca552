"""The interfaces that the coordinator needs: the engine that runs the tasks, and the store for the rows that its tasks keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from twopc.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.attempt import Attempt, Place, TaskKey
    from twopc.batch import Batch
    from twopc.records import TaskReport


@dataclass(frozen=True)
class Write:
    """Evaluate the batch, and write every task's rows to every sink."""

    def includes(self, transaction: TaskKey) -> bool:
        """Whether the attempt writes this transaction."""
        del transaction
        return True


@dataclass(frozen=True)
class Repair:
    """Evaluate the batch and report every partition of the plan, but write only the rows of the lost partitions (rule 9).

    Attributes:
        lost: by sink name, the partitions whose rows are written. Any task may have them now.
        first_task: the number of the attempt's first task. It is above the numbers in the decision, because a sink may identify
            a task's transaction by its number.
        direct: the DataFrames that only the driver may write, as one task. It also wrote them for the decision, and the rows
            are compared with the decision's partition by partition.
    """

    lost: Mapping[str, frozenset[Place]]
    first_task: int
    direct: frozenset[str]

    def includes(self, transaction: TaskKey) -> bool:
        """Whether a task writes to a sink, in a batch with one DataFrame, where tasks have the numbers of their partitions."""
        sink, partition = transaction
        return ("", partition) in self.lost.get(sink, ())


@dataclass(frozen=True)
class Publish:
    """Write the lost rows from the files that the tasks staged; the batch is not evaluated (rule 9).

    Attributes:
        lost: the transactions to write.
        tasks: the decided tasks that staged the rows. The attempt has one task for each, with the same partition.
    """

    lost: frozenset[TaskKey]
    tasks: tuple[TaskReport, ...]

    def includes(self, transaction: TaskKey) -> bool:
        """Whether the attempt writes this transaction."""
        return transaction in self.lost


Mode = Write | Repair | Publish


@dataclass(frozen=True)
class Work:
    """One attempt at a batch, as the engine hands it to its tasks.

    Attributes:
        driver_epochs: by sink name, the epoch that this driver acquired there.
        committed_through: the highest batch whose transactions this driver has all proven, or -1.
        mode: which rows are written, and from where.
        timeout_ms: how long pre-commit may take in total; None where no sink's transactions expire.
        pending: records the tasks' votes, and any task that declines.
    """

    batch: Batch
    attempt: Attempt
    driver_epochs: dict[str, int]
    committed_through: int
    mode: Mode
    timeout_ms: float | None
    pending: Pending = field(default_factory=Pending)

    def number_of(self, task: int) -> int:
        """Return the number under which the sinks know a task's transactions: ``TaskAttempt.partition``."""
        return task + (self.mode.first_task if isinstance(self.mode, Repair) else 0)


class Engine(Protocol):
    """Runs the tasks of a batch."""

    def prepare(self, work: Work) -> Sequence[TaskReport]:
        """Write as ``work.mode`` says; pre-commit every task; return the accepted attempts' reports.

        Raises:
            RetriableError: the attempt is void; a new one may succeed.
            FatalError: a new attempt would fail again.
        """

    def evaluate(self) -> None:
        """Evaluate the batch once and discard the rows: a stateful plan must write its state version."""


class StagedRows(Protocol):
    """The rows that tasks keep until their transactions are proven (``staging=True``), one file for each task attempt.

    A task's report names its staged file. The engine's tasks write and read it.
    """

    def has(self, name: str) -> bool:
        """Whether the file exists and is complete."""

    def release(self, driver_epoch: int, batch_id: int) -> None:
        """Delete rows that this and earlier drivers staged up to ``batch_id``, a proven batch. Best effort; raises nothing."""
