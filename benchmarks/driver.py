"""Run a query's driver without Spark: the real coordinator and sink, with an engine whose tasks run in worker processes."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from twopc.attempt import TaskAttempt
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.files import LocalFiles
from twopc.records import TaskReport
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from twopc.engine import Work

_WORKERS: Final = 8  # a small task mostly waits
_VALUE: Final = b"x" * 100


def workers(count: int = _WORKERS) -> Executor:
    """Create processes that run tasks as Spark's Python workers do. Each process keeps its producers."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


class Query:
    """A query with one sink, and with any number of drivers, one after another.

    Args:
        bootstrap_servers: the broker's address.
        topic: the query's output.
        directory: the directory for the query's checkpoint.
        sink_type: the class of the query's sink.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, directory: Path, *, sink_type: type[KafkaSink] = KafkaSink
    ) -> None:
        name = f"b{uuid.uuid4().hex[:8]}"
        self.sink = sink_type(name=name, bootstrap_servers=bootstrap_servers, topic=topic, timeout_ms=120_000)
        self._id = str(uuid.uuid4())
        self._files = LocalFiles(directory / name)

    def driver(self) -> Coordinator:
        """Create a run, which the caller closes. Its first batch fences the previous run."""
        return Coordinator([self.sink], self._files)

    def batch(self, number: int) -> Batch:
        """Create one of this query's batches."""
        return Batch(self._id, number, (f"offset-{number}",), lambda other: (f"offset-{other}",))


class Tasks:
    """An engine whose tasks write one row each. A batch without tasks is empty, as if the source had no new records.

    Args:
        sink: the sink to which the tasks write.
        tasks: the number of tasks.
        pool: runs the tasks; None: this process runs them.
        prepared: called when all tasks have voted.
        ahead: whether workers prepare producers for their next tasks, as Spark's workers do. If not, the broker gets only the
            driver's requests after the votes.

    Attributes:
        prepared_at: when all tasks had voted, by ``time.perf_counter``; -1 before that.
    """

    def __init__(
        self,
        sink: KafkaSink,
        tasks: int,
        pool: Executor | None = None,
        *,
        prepared: Callable[[], None] = lambda: None,
        ahead: bool = False,
    ) -> None:
        self._ahead = ahead
        self._sink = sink
        self._tasks = tasks
        self._pool = pool
        self._prepared = prepared
        self.prepared_at = -1.0

    def prepare(self, work: Work) -> list[TaskReport]:
        """See ``twopc.engine.Engine``."""
        attempts = [
            TaskAttempt(
                query_id=work.batch.query_id,
                batch_id=work.batch.batch_id,
                attempt=work.attempt,
                partition=number,
                driver_epoch=work.driver_epochs[self._sink.name],
                committed_through=work.committed_through,
            )
            for number in range(self._tasks)
        ]
        handles = self._run(attempts)
        self._prepared()
        self.prepared_at = time.perf_counter()
        if not handles:
            return [TaskReport(partition=0, rows=0, checksum=0)]
        return [
            TaskReport(partition=number, rows=1, checksum=0, handles={self._sink.name: handle})
            for number, handle in enumerate(handles)
        ]

    def evaluate(self) -> None:
        """See ``twopc.engine.Engine``."""

    def _run(self, attempts: Sequence[TaskAttempt]) -> list[dict[str, Any]]:
        if self._pool is None:
            return [_run_task(self._sink, attempt, ahead=self._ahead) for attempt in attempts]
        futures = [self._pool.submit(_run_task, self._sink, attempt, ahead=self._ahead) for attempt in attempts]
        return [future.result() for future in futures]


def _run_task(sink: KafkaSink, attempt: TaskAttempt, *, ahead: bool) -> dict[str, Any]:
    """Write one row with the task's number as its key, and return the encoded handle."""
    key = str(attempt.partition).encode()
    rows = pa.record_batch({"key": pa.array([key], pa.binary()), "value": pa.array([_VALUE], pa.binary())})
    writer = sink.create_writer(attempt)
    try:
        writer.write_rows(rows)
        handle = writer.snapshot_state(attempt.batch_id)
        writer.hand_over()
    except BaseException:
        writer.close()
        raise
    if ahead:
        writer.close()
    if handle is None:
        raise AssertionError("there is a row")
    return sink.encode_handle(handle)
