"""The events that listeners receive while a checkpoint is in progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Triggered:
    """A checkpoint was triggered.

    Attributes:
        batch_id: the batch id, which is also the checkpoint id.
        query_id, run_id: Spark's ids for the query and for its current run.
        triggered_ms: the Unix time at which the checkpoint was triggered, in milliseconds.
    """

    batch_id: int
    query_id: str = ""
    run_id: str = ""
    triggered_ms: int = 0


@dataclass(frozen=True)
class Phase:
    """The checkpoint in progress entered a phase.

    Attributes:
        name: the phase (``prepare``, ``confirm``, ``decide`` or ``commit``), or a startup step.
        attempt_began: when this attempt's tasks and transactions began, by the monotonic clock; None before that.
        transactions_live_ms: how long the sinks' transactions may stay open before they must be decided; None: without
            limit.
        transactions: the names of the transactions that were prepared last.
    """

    name: str
    attempt_began: float | None = None
    transactions_live_ms: float | None = None
    transactions: tuple[str, ...] = ()
