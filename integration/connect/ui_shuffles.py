"""Check rule 6 with the reports in Spark's UI, in the same way as a classic session does with the status store.

Spark posts its reports to a queue, and one thread adds them to the store in order. So once the UI shows the end of an
attempt's last job, it shows every earlier job, stage and attempt, unless Spark has dropped reports. The UI counts the reports
that Spark dropped because the queue was full. If the store was full, there is a gap in the numbers of jobs or attempts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from twopc.errors import ConfigurationError, FatalError, TwoPhaseCommitError
from twopc.integration.connect.spark_ui import SparkUi
from twopc.integration.connect.ui_reports import UiReports
from twopc.integration.spark.job_history import JobHistory
from twopc.integration.spark.shuffles import Shuffles

if TYPE_CHECKING:
    from collections.abc import Collection

    from twopc.integration.spark.mode import ShuffleCheck


class UiShuffles(Shuffles):
    """See :class:`Shuffles`.

    Make the object before the query starts, so that no earlier job can have computed the query's batches.

    Args:
        reports: Spark's reports.

    Raises:
        UnavailableError, FatalError: the UI does not show this application's jobs.
    """

    def __init__(self, reports: UiReports) -> None:
        history = JobHistory(reports)
        super().__init__(history)
        self._reports = reports
        self._require_all_reports()
        history.begin(exactly=True)

    def check(self, tag: str, results: Collection[int]) -> None:
        """See :class:`Shuffles`.

        Raises:
            FatalError: as in the base class, or Spark has dropped a report.
        """
        super().check(tag, results)
        self._require_all_reports()  # after the jobs were read, so that it counts every report that could be missing

    def _require_all_reports(self) -> None:
        """Check that Spark has never dropped a report. Old reports count too, because a cache may be older than the query."""
        dropped = self._reports.dropped_events()
        if dropped:
            raise FatalError(
                f"Spark has dropped {dropped} of its reports about jobs and stages since the server started, because a queue was "
                "full. So the toolkit cannot check whether a stage ran twice and mixed the rows of two shuffles. No part of the "
                "batch is decided or visible. Raise spark.scheduler.listenerbus.eventqueue.capacity (default: 10000), and "
                "restart the server"
            )


class Unusable:
    """See :class:`~twopc.integration.spark.mode.ShuffleCheck`. Rejects every attempt.

    Spark's UI could not be used when the query started.

    Args:
        error: the reason.
    """

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def begin(self) -> NoReturn:
        """Reject the attempt. Recovery has run earlier, so this does not delay a decided batch."""
        raise self._error

    def looking(self, tag: str) -> NoReturn:
        """Reject the attempt."""
        del tag
        raise self._error

    def check(self, tag: str, results: Collection[int]) -> NoReturn:
        """Reject the attempt."""
        del tag, results
        raise self._error

    def close(self) -> None:
        """Do nothing."""


def open_shuffles(session: Any, address: str) -> ShuffleCheck:
    """Create the check that uses Spark's UI.

    Args:
        session: the query's session.
        address: the address of the UI.
    """
    application = str(session.conf.get("spark.app.id"))
    try:
        return UiShuffles(UiReports(SparkUi(address, application), session))
    except TwoPhaseCommitError as error:
        return Unusable(ConfigurationError(f"CheckpointConfig(spark_ui={address!r}): {error}"))
