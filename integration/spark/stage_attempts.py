"""A stage that Spark ran twice may have read two generations of a shuffle: its tasks must not be decided (rule 6)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from twopc.errors import RetriableError

if TYPE_CHECKING:
    from pyspark import StatusTracker

#: How long Spark's listener bus, which reports stages, may lag behind the job.
_STATUS_TIMEOUT_S: Final = 30.0
_STATUS_POLL_S: Final = 0.002


def require_first_attempts(tracker: StatusTracker, stages: set[int], *, tasks: int) -> None:
    """Require that all tasks came from attempt 0 of their stage.

    The proof is that all ``tasks`` of each stage completed in attempt 0. That no later attempt was reported proves
    nothing, because the report may lag.

    Raises:
        RetriableError: a stage ran again, or Spark did not report in time.
    """
    deadline = time.monotonic() + _STATUS_TIMEOUT_S
    for stage in stages:
        while True:
            info = tracker.getStageInfo(stage)
            if info is not None and info.currentAttemptId > 0:
                raise RetriableError(f"stage {stage} was run again (attempt {info.currentAttemptId})")
            if info is not None and info.numCompletedTasks >= tasks:
                break
            if time.monotonic() > deadline:
                raise RetriableError(
                    f"Spark did not report within {_STATUS_TIMEOUT_S:.0f} s whether stage {stage} was run again"
                )
            time.sleep(_STATUS_POLL_S)
