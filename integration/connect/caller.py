"""Through Spark Connect, find out which of a session's queries may have made a call.

No single fact identifies the caller. Spark numbers the columns of each plan that it analyzes. However, Spark Connect
keeps the analyzed plans (since Spark 4.0, after ``printSchema()``, for example), so several queries on one DataFrame
may share the same column numbers. Therefore, each rule below only excludes queries that did *not* make the call. No rule
excludes the caller. The rules are:

- The caller reads the batch's columns.
- Spark starts a process before it starts that process's query, so a run that was already active at that time is not the
  caller.
- The caller waits until the call returns, so a run that finishes a trigger before then is not the caller.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from twopc.integration.connect.plans import plan_of_query

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Set as AbstractSet

logger = logging.getLogger(__name__)

_LIMIT_S: Final = 120.0
#: How long Spark may take to register a query that it has started.
_STARTING_S: Final = 10.0
_POLL_S: Final = 0.1


def queries_with(columns: AbstractSet[str], session: Any, run_id: str) -> list[str]:
    """Return the ids of the session's other queries that may process batches with these columns.

    Args:
        columns: the columns of the batch, each with its number.
        session: the session.
        run_id: the id of the run that processes the batch.
    """
    others = (query for query in session.streams.active if str(query.runId) != run_id)
    return [str(query.id) for query in others if _may_have(query, columns)]


def _may_have(query: Any, columns: AbstractSet[str]) -> bool:
    asking = Retrying(
        retry=retry_if_exception_type(PySparkException),  # Spark Connect cannot report on a query that is just starting
        stop=stop_after_delay(_STARTING_S),
        wait=wait_fixed(_POLL_S),
        retry_error_callback=lambda _: True,
    )
    return bool(asking(lambda: plan_of_query(query).may_have(columns)))


class Callers:
    """The queries that may have made the current call. Use this object only during the call.

    Args:
        session: the session.
        columns: the columns of the batch, each with its number.
        earlier: the ids of the runs that were active before Spark started this process.
    """

    def __init__(self, session: Any, columns: AbstractSet[str], earlier: Collection[str]) -> None:
        self._session = session
        self._columns = columns
        self._others = set(earlier)
        self._last_triggers: dict[str, object] = {}

    def look(self) -> frozenset[str]:
        """Return the ids of the runs that may have made the call. Each call may exclude more runs."""
        active = {str(query.runId): query for query in self._session.streams.active}
        self._others |= {
            run_id for run_id, query in active.items() if run_id not in self._others and self._is_other(query)
        }
        return frozenset(active) - self._others

    def wait_for(self, run_id: str) -> frozenset[str]:
        """Repeat :meth:`look` until only one run is left, ``run_id`` is excluded, or the time is up."""
        found, began, is_told = self.look(), time.monotonic(), False
        while run_id in found and len(found) > 1 and time.monotonic() - began < _LIMIT_S:
            if not is_told:
                logger.warning(
                    "%d queries in this session are processing batches with the same columns, so the driver cannot "
                    "tell yet which query is making this call. The driver waits up to %.0f s for the other queries to finish a "
                    "trigger. To avoid the wait, give each query its own DataFrame, with a separate "
                    "readStream.….load()",
                    len(found),
                    _LIMIT_S,
                )
                is_told = True
            time.sleep(_POLL_S)
            found = self.look()
        return found

    def _is_other(self, query: Any) -> bool:
        """Whether this query certainly did not make the call."""
        with contextlib.suppress(PySparkException):  # Spark Connect cannot report on a query that is just starting
            if not query.status["isTriggerActive"] or not plan_of_query(query).may_have(self._columns):
                return True
            progress = query.lastProgress
            last = None if progress is None else (progress.batchId, progress.timestamp)
            return bool(self._last_triggers.setdefault(str(query.runId), last) != last)
        return False
