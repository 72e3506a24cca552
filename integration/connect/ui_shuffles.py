"""Check rule 6 with the reports in Spark's UI, as a classic session does with the status store.

Spark posts its reports to a queue, and one thread adds them to the store in order. So once the UI shows the end of an
attempt's last job, it shows every earlier job, stage and attempt, unless Spark has dropped reports. The UI counts the reports
that Spark dropped because the queue was full. If the store was full, there is a gap in the job or attempt numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.integration.connect.spark_ui import SparkUi
from twopc.integration.connect.ui_reports import UiReports
from twopc.integration.spark.job_history import JobHistory
from twopc.integration.spark.shuffle_kinds import other_shuffles
from twopc.integration.spark.shuffles import Shuffles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from twopc.integration.spark.mode import ShuffleCheck


class Unusable:
    """See :class:`~twopc.integration.spark.mode.ShuffleCheck`. Rejects every attempt.

    Spark's UI could not be used when the query started.

    Args:
        error: the reason.
    """

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def begin(self) -> NoReturn:
        """Reject the attempt. Recovery has already run, so this does not delay a decided batch."""
        raise self._error

    def look(self, tag: str, *, is_collected: bool = True) -> NoReturn:
        """Reject the attempt."""
        del tag, is_collected
        raise self._error

    def check(self, tag: str, results: Collection[int], kept_since_ms: Callable[[], float | None]) -> NoReturn:
        """Reject the attempt."""
        del tag, results, kept_since_ms
        raise self._error

    def close(self) -> None:
        """Do nothing."""


def open_shuffles(session: Any, address: str, *, is_at_start: bool = False) -> ShuffleCheck:
    """Create the check that uses Spark's UI.

    Call this before the query starts, so that no earlier job can have computed the query's batches.

    Args:
        session: the query's session.
        address: the address of the UI.
        is_at_start: whether the query has not planned a batch yet.
    """
    application = str(session.conf.get("spark.app.id"))
    try:
        history = JobHistory(UiReports(SparkUi(address, application), session, is_at_start=is_at_start))
        now = history.begin(exactly=True)
        return Shuffles(history, first=now.job if is_at_start else 0, is_merged=bool(other_shuffles(session.conf.get)))
    except TwoPhaseCommitError as error:
        return Unusable(ConfigurationError(f"CheckpointConfig(spark_ui={address!r}): {error}"))
