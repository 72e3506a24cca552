"""The batches of the schedules: distinct rows, and a task attempt that is never accepted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.live.pipeline import Tasks, prepare_task

if TYPE_CHECKING:
    from twopc.engine import Work
    from twopc.records import TaskReport

ROWS: Final = (("a", "b"), ("c",))
#: The same rows, as a reader sees them.
VISIBLE: Final = Counter("abc")


def rows_of(batch: int) -> list[list[str]]:
    """Two tasks with three rows, different in each batch."""
    return [[f"{batch}a", f"{batch}b"], [f"{batch}c"]]


def seen(batches: int) -> Counter[str]:
    """The rows that readers see after this many batches."""
    return Counter(row for batch in range(batches) for task in rows_of(batch) for row in task)


class WithOrphan(Tasks):
    """One attempt of the last task is never accepted: the loser of speculation, or a cancelled task.

    It writes first, and leaves its transaction open in that task's partitions.
    """

    orphan: Any = None

    def prepare(self, work: Work) -> list[TaskReport]:
        self.orphan = prepare_task(self._query, work, len(self._rows) - 1, ["never"])
        return super().prepare(work)
