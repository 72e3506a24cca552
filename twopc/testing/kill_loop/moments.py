"""Hold a query at the moment when it is to be killed. This code runs inside the process that will be killed."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from twopc.testing.crash_points import arm
from twopc.testing.kill_loop.hold import end_of, stand_still
from twopc.testing.kill_loop.kills import Kill, Moment
from twopc.testing.kill_loop.records import SCHEMA, TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Gate:
    """A gate that passes rows through. It holds the last task at the task's end, or only reports the task's start.

    Attributes:
        reached: the file to write.
        holds: whether to hold the task.
    """

    reached: str
    holds: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Pass one task's rows through. This is the function for ``mapInArrow``."""
        context = TaskContext.get()
        is_last = context is not None and context.partitionId() == TASKS - 1
        if is_last and not self.holds:
            Path(self.reached).touch()
        yield from batches
        if is_last and self.holds:
            stand_still(self.reached)


@dataclass
class HeldFunction:
    """A ``foreachBatch`` function that waits during the batch for which a kill is planned.

    Under Spark Connect, the function is pickled and called in a server process.

    Attributes:
        function: the user's function.
        kill: the planned kill. For POINT, the first call arms the crash point.
        reached: the file to write when the moment of the kill has come.
        calls: the number of calls so far.
    """

    function: Callable[[DataFrame, int], None]
    kill: Kill
    reached: str
    calls: int = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process one batch, and record the error, if any."""
        try:
            self._process(frame, batch_id)
        except Exception as error:
            end_of(self.reached).write_text(type(error).__name__)
            raise
        end_of(self.reached).write_text("no error")

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        self.calls += 1
        if self.calls == 1 and self.kill.moment is Moment.POINT:
            arm(self.kill.point, functools.partial(stand_still, self.reached), passage=self.kill.passage)
        due = self.kill.moment if self.calls == self.kill.passage else None
        if due is Moment.BEFORE:
            stand_still(self.reached)
        self.function(frame, batch_id)
        if due is Moment.AFTER:
            stand_still(self.reached)


def gated(frame: DataFrame, kill: Kill, reached: str) -> DataFrame:
    """Return the DataFrame, with a gate if the moment needs one."""
    if kill.moment not in {Moment.DURING, Moment.RANDOM}:
        return frame
    return frame.mapInArrow(Gate(reached, holds=kill.moment is Moment.DURING), SCHEMA)


def hold_functions(writer: Any, kill: Kill, reached: str) -> None:
    """Patch this writer class, so that ``foreachBatch`` wraps every function in a :class:`HeldFunction`."""
    original = writer.foreachBatch

    @functools.wraps(original)
    def foreach_batch(self: Any, function: Callable[[DataFrame, int], None]) -> Any:
        return original(self, HeldFunction(function, kill, reached))

    writer.foreachBatch = foreach_batch
