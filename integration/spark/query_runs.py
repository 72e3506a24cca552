"""Remember each run of a query in this process, even if the user creates a new ``exactly_once`` object for the same run.

A run never repeats a batch that it has finished: Spark replays only a batch that an earlier run left unfinished
(``MicroBatchExecution``). So a second call for a batch is a mistake, even if the call goes through another object.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from twopc.integration.spark.kept import Runs
from twopc.integration.spark.several import require_one_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twopc.integration.spark.mode import Query, ShuffleCheck
    from twopc.integration.spark.several import Call


class Closable(Protocol):
    """The writer of a run's batches."""

    def close(self) -> None:
        """Release connections."""


@dataclass
class QueryRun:
    """One run of a query. Only the query's thread uses this object.

    Attributes:
        query: Spark's view of the run.
        shuffles: checks the run's jobs for rule 6.
        last_call: the last call for one of the run's batches.
        writer: the object that took the last call.
    """

    query: Query
    shuffles: ShuffleCheck
    last_call: Call | None = None
    writer: Closable | None = field(default=None, repr=False)

    def take(self, call: Call, writer: Closable) -> None:
        """Accept a call for a batch, unless it is a second call for the same batch.

        Raises:
            ConfigurationError: the call is a second call for its batch; see :func:`require_one_call`.
        """
        require_one_call(call, self.last_call)
        if self.writer is not None and self.writer is not writer:
            self.writer.close()  # some users make an object for each batch, whose connections would stay open
        self.last_call, self.writer = call, writer

    @property
    def among_others(self) -> Runs:
        """This run, and all other runs that may still be active."""
        return Runs(self.query.run_id, frozenset(_runs) | {self.query.run_id})


_runs: Final[dict[str, QueryRun]] = {}
_lock: Final = threading.Lock()  # queries of one process start in separate threads


def enter_run(query: Query, check: Callable[[], ShuffleCheck]) -> QueryRun:
    """Find the current run of a query, or register the run. Drop the runs that have stopped.

    Args:
        query: the query that makes the current call.
        check: makes the shuffle check for a new run.
    """
    with _lock:
        if query.run_id not in _runs:
            for ended in list(_ended()):
                drop(ended)
            _runs[query.run_id] = QueryRun(query, check())
        return _runs[query.run_id]


def drop(run: QueryRun) -> None:
    """Forget a run that has stopped, and close its connections."""
    if _runs.pop(run.query.run_id, None) is not None:
        run.shuffles.close()
        if run.writer is not None:
            run.writer.close()


def _ended() -> Iterator[QueryRun]:
    return (run for run in _runs.values() if not run.query.is_active)
