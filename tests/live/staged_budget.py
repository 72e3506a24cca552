"""Count the round trips to a store: by step for a batch with one task, and for a batch that Spark's tasks write."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.budget import counting_method, least
from tests.live.file_query import Query
from tests.live.one_task import OneTask, batch
from tests.live.pipeline import opened
from twopc import crash_points
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.testing.contract.drivers import batch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from twopc.attempt import TaskAttempt
    from twopc.engine import Work
    from twopc.integration.spark import ExactlyOnce
    from twopc.records import TaskReport
    from twopc.sink import TwoPhaseCommitSink
    from twopc.writer import SinkWriter

BEGIN, STAGE, CONFIRM, APPLY = "begin", "stage", "confirm", "apply, prove and sweep"
_WARM_UP, _BATCHES = 2, 4


class Steps(OneTask):
    """Counts the round trips before and between the steps of a batch. ``sent`` grows with each round trip."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], rows: pa.RecordBatch, sent: list[str]) -> None:
        super().__init__(sink, rows)
        self._sent = sent
        self._before = len(sent)
        self.counted: Counter[str] = Counter()

    def note(self, step: str) -> None:
        """Count all requests since the last step for this step."""
        self.counted[step] += len(self._sent) - self._before
        self._before = len(self._sent)

    def prepare(self, work: Work) -> list[TaskReport]:
        self.note(BEGIN)
        reports = super().prepare(work)
        self.note(STAGE)
        return reports


def round_trips(sink: TwoPhaseCommitSink[Any], rows: int, sent: list[str], directory: Path) -> dict[str, int]:
    """The round trips of a batch with columns ``id`` and ``n``, by a driver that has already processed batches."""
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


def counted_writer(
    create: Callable[[TaskAttempt], Any], task: TaskAttempt, owner: Any, method: str, into: str
) -> SinkWriter[Any]:
    """Create a writer in a worker. When it is closed, it adds a line to the file: how often the method was called."""
    counting = contextlib.ExitStack()
    sent = counting.enter_context(counting_method(owner, method))
    writer = create(task)
    close = writer.close

    def closing() -> None:
        close()
        counting.close()
        with Path(into).open("a") as file:
            file.write(f"{len(sent)}\n")

    writer.close = closing
    return writer  # type: ignore[no-any-return]


def round_trips_of_spark(
    spark: SparkSession, sink: Any, partitions: int, owner: Any, method: str, directory: Path
) -> list[tuple[list[int], int]]:
    """For each batch of a shuffle: the round trips of each task, which are in the file ``sink.into``, and of the driver."""
    into, found = Path(sink.into), []

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def counted(frame: DataFrame, number: int) -> None:
            into.write_text("")
            with counting_method(owner, method) as sent:
                each(frame, number)
            found.append(([int(line) for line in into.read_text().split()], len(sent)))

        return counted

    query = Query(spark, directory, (sink,), {"write_by": "tasks"}, function=function)
    query.plan = lambda frame: frame.repartition(partitions, "id")
    for _ in range(_WARM_UP + _BATCHES):
        query.feed(*({"id": str(number), "n": number} for number in range(400)))
    query.run()
    return found[_WARM_UP:]
