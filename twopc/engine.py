"""What the coordinator asks of the engine that runs the tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import Attempt, TaskKey
    from twopc.batch import Batch
    from twopc.records import TaskReport


@dataclass(frozen=True)
class Work:
    """One attempt at a batch, as the engine gives it to its tasks.

    Attributes:
        batch: the batch.
        attempt: names the attempt.
        driver_epochs: by sink name.
        committed_through: the highest batch of which every transaction is proven.
        only_tasks: write these alone, but evaluate and report every task (rule 9); None writes all.
        timeout_ms: how long pre-commit may take in all; None where no sink's transactions expire.
    """

    batch: Batch
    attempt: Attempt
    driver_epochs: dict[str, int]
    committed_through: int
    only_tasks: frozenset[TaskKey] | None
    timeout_ms: float | None


@dataclass(frozen=True)
class Snapshot:
    """What an attempt brings to its decision.

    Attributes:
        attempt: which one.
        tasks: the report of every task, handles included.
        scan_start: what each sink's ``begin_attempt`` returned.
    """

    attempt: Attempt
    tasks: tuple[TaskReport, ...]
    scan_start: dict[str, dict[str, Any]]


class Engine(Protocol):
    """Runs the tasks of a batch."""

    def prepare(self, work: Work) -> Sequence[TaskReport]:
        """Evaluate the batch once, pre-commit every task, and return the reports of the accepted attempts.

        Raises:
            RetriableError: the attempt is void, a new one may succeed.
            FatalError: it would fail again.
        """

    def evaluate(self) -> None:
        """Evaluate the batch once into nothing: a stateful plan must write its state version."""
