"""Round trips to a store of a batch of one task, by step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.budget import least
from tests.live.one_task import OneTask, batch
from tests.live.pipeline import opened
from twopc import crash_points
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.testing.contract.drivers import batch_of

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sink import TwoPhaseCommitSink

BEGIN, STAGE, CONFIRM, APPLY = "begin", "stage", "confirm", "apply, prove and sweep"
_WARM_UP, _BATCHES = 2, 4


class Steps(OneTask):
    """Counts what is sent until and between the steps of a batch. ``sent`` grows with each round trip."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], rows: pa.RecordBatch, sent: list[str]) -> None:
        super().__init__(sink, rows)
        self._sent = sent
        self._before = len(sent)
        self.counted: Counter[str] = Counter()

    def note(self, step: str) -> None:
        """Everything sent since the last step belongs to this one."""
        self.counted[step] += len(self._sent) - self._before
        self._before = len(self._sent)

    def prepare(self, work: Work) -> list[TaskReport]:
        self.note(BEGIN)
        reports = super().prepare(work)
        self.note(STAGE)
        return reports


def round_trips(sink: TwoPhaseCommitSink[Any], rows: int, sent: list[str], directory: Path) -> dict[str, int]:
    """The round trips of a batch with columns ``id`` and ``n``, by a driver that has had batches before."""
    driver = Coordinator([sink], LocalFiles(directory))
    opened.append(driver)
    ids = pa.array(range(rows), pa.int64())
    found = []
    for number in range(_WARM_UP + _BATCHES):
        steps = Steps(sink, batch(id=ids, n=ids), sent)
        crash_points.arm("driver.decided", lambda steps=steps: steps.note(CONFIRM))  # type: ignore[misc]
        driver.process(batch_of(number), steps)
        steps.note(APPLY)
        found.append(steps.counted)
    return least(found[_WARM_UP:])
