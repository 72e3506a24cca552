"""Make a query stand still at the moment of its kill, inside the process that will be killed.

When a moment is reached, a file is written. The loop watches that file and kills all processes of the session; nothing here
returns before that.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.streaming.readwriter import DataStreamWriter

from twopc.testing.kill_loop.kills import Kill, Moment
from twopc.testing.kill_loop.records import SCHEMA, TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from pyspark.sql import DataFrame

#: This is longer than any kill takes. After this time, the moment fails, and the query with it.
_HELD_S: Final = 600


@dataclass(frozen=True)
class Gate:
    """Passes rows through. It holds the last task at its end, or only reports the start of that task.

    Attributes:
        reached: the file to write.
        holds: whether to hold the task.
    """

    reached: str
    holds: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Pass the rows of one task; the function for ``mapInArrow``."""
        context = TaskContext.get()
        is_last = context is not None and context.partitionId() == TASKS - 1
        if is_last and not self.holds:
            Path(self.reached).touch()
        yield from batches
        if is_last and self.holds:
            stand_still(self.reached)


def stand_still(reached: str) -> None:
    """Report that the moment has come, and wait for SIGKILL.

    Raises:
        RuntimeError: this process was not killed.
    """
    Path(reached).touch()
    time.sleep(_HELD_S)
    raise RuntimeError(f"this process was not killed within {_HELD_S} s of {reached}")


def gated(frame: DataFrame, kill: Kill, reached: str) -> DataFrame:
    """Return the frame, with a gate if the moment needs one."""
    if kill.moment not in {Moment.DURING, Moment.RANDOM}:
        return frame
    return frame.mapInArrow(Gate(reached, holds=kill.moment is Moment.DURING), SCHEMA)


def wrap_foreach_batch(kill: Kill, reached: str) -> None:
    """Make every ``foreachBatch`` in this process pause before or after its function, on the batch where the kill is due."""
    if kill.moment not in {Moment.BEFORE, Moment.AFTER}:
        return
    original: Any = DataStreamWriter.foreachBatch

    @functools.wraps(original)
    def foreach_batch(writer: DataStreamWriter, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        calls = 0

        def called(frame: DataFrame, batch_id: int) -> None:
            nonlocal calls
            calls += 1
            if calls == kill.passage and kill.moment is Moment.BEFORE:
                stand_still(reached)
            function(frame, batch_id)
            if calls == kill.passage:
                stand_still(reached)

        wrapped: DataStreamWriter = original(writer, called)
        return wrapped

    DataStreamWriter.foreachBatch = foreach_batch  # type: ignore[method-assign,assignment]
