"""Join the runs of a shuffle's stage that belong together: a run that failed, and the run of a retry that wrote the rest.

If a task fails too often, Spark keeps what the stage's other tasks have written. The stage of a retry runs only the missing
tasks. Each task's output then comes from a single run, and no stage can read the shuffle until the retry has written the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.integration.spark.reports import StageAttempt

_FAILED: Final = "FAILED"


def joined(runs: Iterable[StageAttempt]) -> list[StageAttempt]:
    """Join the first of these runs with the runs that wrote the rest.

    Args:
        runs: all runs that wrote a shuffle, in chronological order.
    """
    found: list[StageAttempt] = []
    for run in runs:
        if len(found) == 1 and _wrote_the_rest(found[0], run):
            found = [_both(found[0], run)]
        else:
            found.append(run)
    return found


def failed_first(runs: Iterable[StageAttempt]) -> bool:
    """Whether the first of these runs failed, and the next run belongs to another job's stage."""
    first, second, *_ = runs
    return first.status == _FAILED and first.stage_id != second.stage_id


def _wrote_the_rest(failed: StageAttempt, later: StageAttempt) -> bool:
    """Whether the later run executed exactly the tasks that had not succeeded in the failed run.

    A task that succeeded counts even if its output was lost, or came too late for Spark to use. Spark then runs the task again,
    so the sum is higher.
    """
    is_next = failed_first((failed, later)) and not failed.attempt_id and not later.attempt_id
    return is_next and failed.num_complete_tasks + later.num_tasks == failed.num_tasks


def _both(failed: StageAttempt, later: StageAttempt) -> StageAttempt:
    return structs.replace(
        later,
        rdd_ids=tuple(dict.fromkeys((*later.rdd_ids, *failed.rdd_ids))),
        shuffle_read_records=failed.shuffle_read_records + later.shuffle_read_records,
        shuffle_write_records=failed.shuffle_write_records + later.shuffle_write_records,
        submission_time=failed.submission_time,
        num_tasks=failed.num_tasks,
        num_complete_tasks=failed.num_complete_tasks + later.num_complete_tasks,
    )
