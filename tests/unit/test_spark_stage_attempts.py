"""Only tasks of a stage's first attempt are decided (rule 6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from integration.spark.stage_attempts import require_first_attempts
from twopc.errors import RetriableError


def test_a_stage_that_ran_again_is_not_decided() -> None:
    with pytest.raises(RetriableError, match="stage 7 was run again"):
        require_first_attempts(tracker(SimpleNamespace(currentAttemptId=1, numCompletedTasks=4)), {7}, tasks=4)


def test_a_stage_is_waited_for_until_spark_has_reported_all_its_tasks() -> None:
    reported = [
        None,
        SimpleNamespace(currentAttemptId=0, numCompletedTasks=3),
        SimpleNamespace(currentAttemptId=0, numCompletedTasks=4),
    ]
    asked = tracker(*reported)
    require_first_attempts(asked, {7}, tasks=4)
    with pytest.raises(StopIteration):
        asked.getStageInfo(7)


def tracker(*reported: Any) -> Any:
    """Spark's status tracker, which reports these things of a stage one after the other."""
    answers = iter(reported)
    return SimpleNamespace(getStageInfo=lambda _: next(answers))
