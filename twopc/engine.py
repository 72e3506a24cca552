"""The interfaces that the coordinator needs: the engine that runs the tasks, and the store of the rows that its tasks keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from twopc.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Attempt, TaskKey
    from twopc.batch import Batch
    from twopc.records import TaskReport


@dataclass(frozen=True)
class Work:
    """One attempt at a batch, as the engine hands it to its tasks.

    Attributes:
        driver_epochs: by sink name, the epoch that this driver acquired there.
        committed_through: the highest batch of which this driver has proven every transaction; -1: none.
        only_tasks: write these transactions only, but evaluate and report every task (rule 9); None writes all.
        timeout_ms: how long pre-commit may take in all; None where no sink's transactions expire.
        slices: the decided tasks whose transactions are written again from the rows that they have staged (rule 9): one task
            for each, with its partition, and the batch is not evaluated. Empty unless staged rows are published.
        direct: the DataFrames that the driver, and it alone, must write as one task, because a repair compares the decision's
            rows task by task (rule 9); None leaves the choice to the engine.
        pending: records the tasks' votes, and a task that votes no.
    """

    batch: Batch
    attempt: Attempt
    driver_epochs: dict[str, int]
    committed_through: int
    only_tasks: frozenset[TaskKey] | None
    timeout_ms: float | None
    slices: tuple[TaskReport, ...] = ()
    direct: frozenset[str] | None = None
    pending: Pending = field(default_factory=Pending)


class Engine(Protocol):
    """Runs the tasks of a batch."""

    def prepare(self, work: Work) -> Sequence[TaskReport]:
        """Evaluate the batch once, or read ``work.slices``; pre-commit every task; return the accepted attempts' reports.

        Raises:
            RetriableError: the attempt is void; a new one may succeed.
            FatalError: a new attempt would fail again.
        """

    def evaluate(self) -> None:
        """Evaluate the batch once and discard the rows: a stateful plan must write its state version."""


class StagedRows(Protocol):
    """The rows that tasks keep until their transactions are proven (``staging=True``), one slice for each task attempt.

    A task's report names its slice. The engine's tasks write and read it.
    """

    def has(self, name: str) -> bool:
        """Whether the slice exists and is complete."""

    def release(self, driver_epoch: int, batch_id: int) -> None:
        """Delete what this driver and earlier ones staged up to ``batch_id``, which is proven. Best effort; raises nothing."""
