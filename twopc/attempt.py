"""What names an attempt at a batch and a task's part in it; and who claims a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: One transaction of a batch: the sink's name and the task's partition.
TaskKey = tuple[str, int]


class Attempt(NamedTuple):
    """Names an attempt: a driver that died undecided leaves no record to count on (rule 13)."""

    driver_epoch: int
    counter: int


@dataclass(frozen=True)
class TaskAttempt:
    """Which work a writer does; all that names its transaction.

    Attributes:
        query_id: the query's id, from its checkpoint.
        batch_id: the batch id.
        attempt: the driver's attempt at this batch.
        partition: the task's partition index in the plan.
        driver_epoch: that of the sink in this run (:meth:`SinkCommitter.acquire`).
        committed_through: the highest batch of which this driver has proven every transaction; -1 when there is none.
    """

    query_id: str
    batch_id: int
    attempt: Attempt
    partition: int
    driver_epoch: int
    committed_through: int


@dataclass(frozen=True)
class Claim:
    """Who takes over.

    Attributes:
        query_id: the query's id.
        run: a UUID of this run of it.
        deciding_log: the name of the log that holds the decisions for all sinks of the query.
    """

    query_id: str
    run: str
    deciding_log: str
