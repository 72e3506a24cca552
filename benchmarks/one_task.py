"""Run a batch with one task through a sink without Spark, step by step from the Arrow rows to the proof."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twopc.attempt import Attempt, Claim, Evidence, TaskAttempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from twopc.sink import TwoPhaseCommitSink

ARROW_ROWS: Final = 10_000  #: rows per Arrow batch, the default for spark.sql.execution.arrow.maxRecordsPerBatch
_READY: Final = "twopc-producers"


@dataclass(frozen=True)
class Steps:
    """How many seconds each step took: write or stage, confirm, and commit and prove."""

    write_s: float
    confirm_s: float
    commit_s: float

    @property
    def total_s(self) -> float:
        """How many seconds all steps took together."""
        return self.write_s + self.confirm_s + self.commit_s


def run_task(sink: TwoPhaseCommitSink[Any], batches: Sequence[pa.RecordBatch], *, warm: bool = False) -> Steps:
    """Write and commit the rows.

    Args:
        sink: any sink.
        batches: the rows, at least one.
        warm: whether the worker has been idle before, so that its producers are ready. In a query, this is true for every batch
            except the first.
    """
    committer = sink.create_committer()
    try:
        seen = committer.inspect()
        driver_epoch = committer.acquire(Claim("bench", uuid.uuid4().hex, "none"), seen)
        task = TaskAttempt("bench", 0, Attempt(0, 0), 0, driver_epoch, -1)
        if warm:
            sink.create_writer(task).close()
            for thread in threading.enumerate():
                if thread.name == _READY:
                    thread.join()
        began = time.perf_counter()
        scan_start = committer.begin_attempt()
        writer = sink.create_writer(task)
        for batch in batches:
            writer.write_rows(batch)
        handle = writer.snapshot_state(0)
        if handle is None:
            raise AssertionError("there are rows")
        writer.hand_over()
        written = time.perf_counter()
        writer.close()
        committer.confirm([handle], 0)
        confirmed = time.perf_counter()
        found = committer.commit([handle], scan_start)
        committed = time.perf_counter()
        if found != {handle: Evidence.COMMITTED}:
            raise AssertionError(f"not committed: {found}; {committer.blockers()}")
    finally:
        committer.close()
    return Steps(written - began, confirmed - written, committed - confirmed)
