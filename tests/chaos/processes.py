"""The processes of one query without Spark: a driver and its writers, forked from a process without threads."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from tests.tasks import attempt_of, is_wanted, keyed_views, prepare
from twopc import errors
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.engine import Publish
from twopc.errors import FatalError, RetriableError, TwoPhaseCommitError
from twopc.files import LocalFiles
from twopc.integration.services.guard import die_with_parent
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.records import TaskReport
from twopc.settings import Settings
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.query import Query
    from twopc.attempt import TaskAttempt
    from twopc.engine import Work
    from twopc.sinks.kafka import KafkaSink

# The first array made from Python objects imports pandas. Do that once here, not in every forked process.
pa.array([b""])

#: The exit code of a process that survived its fault.
STRUCK: Final = 3
#: A process that lives longer is stuck, and its outcome fails the trial.
LIFETIME_S: Final = 60
_SPECULATE_AFTER_S: Final = 0.5
_ANSWERED_WITHIN_S: Final = 30
_POLL_S: Final = 0.003


class Exit(NamedTuple):
    """How a process ended: ``code`` is the result of :func:`os.waitstatus_to_exitcode`, or None while it is stopped."""

    code: int | None


def fork(work: Callable[[], bool]) -> int:
    """Run ``work`` in a new process and return its id. It exits with :data:`STRUCK` if ``work`` returns True."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent()  # takes effect even while this process is stopped
        signal.alarm(LIFETIME_S)
        code = STRUCK if work() else 0
    except BaseException:  # noqa: BLE001 - printed, then this process ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def await_change(pid: int, timeout_s: float = LIFETIME_S + 5) -> Exit:
    """Wait until the process ends or stops itself."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found:
            return Exit(None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status))
        time.sleep(_POLL_S)
    raise AssertionError(f"process {pid} neither ended nor stopped")


def serve_tasks(connection: Connection, sink: KafkaSink, staging: str | None, fault: str) -> bool:
    """Run tasks as a writer until the driver has ended. Return whether the fault has struck."""
    crash_points.disarm()
    crash_points.arm_from(fault)
    with contextlib.suppress(EOFError, OSError):
        while True:
            job, number, task, rows, writes = connection.recv()
            try:
                found: Any = _write(sink, number, task, rows, staging, writes=writes)
            except TwoPhaseCommitError as error:
                found = (RetriableError.__name__ if error.retriable else type(error).__name__, str(error))
            except crash_points.InjectedFault:
                found = (RetriableError.__name__, "an injected fault")
            connection.send((job, number, found))
    return _has_struck(fault)


def _has_struck(fault: str) -> bool:
    """Whether the fault has struck; nothing else shows a delay, or an error that was retried."""
    return bool(fault) and not crash_points.is_armed(fault.partition("@")[0])


def _write(
    sink: KafkaSink, number: int, task: TaskAttempt, rows: list[bytes], staging: str | None, *, writes: bool
) -> TaskReport:
    """Does the same as ``twopc.integration.spark.task``."""
    keys = [row.partition(b":")[0] for row in rows]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(rows, pa.binary())})
    staged = StagedFileWriter(staging, task.driver_epoch, task.batch_id, keyed_views(sink.name)) if staging else None
    if staged is not None and rows:
        staged.write(batch)
    handle = prepare(sink, task, [batch]) if writes else None
    checksum = sum(int.from_bytes(row[:16].ljust(16, b"."), "big") for row in rows) % 2**64
    return TaskReport(
        partition=number,
        rows=len(rows),
        checksum=checksum,
        handles={} if handle is None else {sink.name: sink.encode_handle(handle)},
        staged=staged.close() if staged is not None else None,
    )


class Engine:
    """See :class:`twopc.engine.Engine`: runs a batch's tasks on the writers; an unanswered task also goes to another writer."""

    def __init__(self, query: Query, writers: Sequence[Connection], jobs: list[int]) -> None:
        self._query, self._writers, self._jobs = query, list(writers), jobs

    def evaluate(self) -> None:
        """Does nothing: these batches have no state."""

    def prepare(self, work: Work) -> list[TaskReport]:
        self._jobs.append(len(self._jobs))
        rows = self._staged_files(work) or dict(enumerate(self._query.split(work.batch.batch_id, work.attempt)))
        waiting = list(rows)
        running = dict[Any, int]()
        tried_again = set[int]()
        found: dict[int, TaskReport] = {}
        deadline = time.monotonic() + _ANSWERED_WITHIN_S
        while len(found) < len(rows):
            while waiting and (idle := [writer for writer in self._writers if writer not in running]):
                partition = waiting.pop()
                if self._send(idle[0], work, partition, rows[partition]):
                    running[idle[0]] = partition
                else:
                    waiting.append(partition)
            ready = wait(list(running), _SPECULATE_AFTER_S)
            if not ready and self._query.speculates:  # the writers may be stopped, so others run their tasks, too
                again = set(running.values()) - tried_again - set(found)
                tried_again |= again
                waiting += again
            for writer in ready:
                self._take(writer, running, waiting, found)
            if not self._writers or time.monotonic() > deadline:
                raise RetriableError("every writer is lost or stopped")
        return list(found.values())

    def _staged_files(self, work: Work) -> dict[int, list[bytes]]:
        """The rows to publish again, if this is not an ordinary attempt."""
        staging = Staging(str(self._query.staging))
        return {
            task.partition: [
                bytes(value)
                for part in staging.read(str(task.staged), self._query.sink.name)
                for value in part.column("value")
            ]
            for task in (work.mode.tasks if isinstance(work.mode, Publish) else ())
        }

    def _take(self, writer: Any, running: dict[Any, int], waiting: list[int], found: dict[int, TaskReport]) -> None:
        try:
            job, partition, answer = writer.recv()
        except (EOFError, OSError):
            self._writers.remove(writer)
            waiting.append(running.pop(writer))
            return
        if job != self._jobs[-1]:
            return  # the attempt is over
        del running[writer]
        if isinstance(answer, TaskReport):
            found.setdefault(partition, answer)
            return
        kind = getattr(errors, answer[0], FatalError)
        if not issubclass(kind, RetriableError):
            raise kind(answer[1])
        if partition not in found:
            waiting.append(partition)

    def _send(self, writer: Any, work: Work, partition: int, rows: list[bytes]) -> bool:
        name = self._query.sink.name
        try:
            task, writes = attempt_of(work, name, partition), is_wanted(work, name, partition)
            writer.send((self._jobs[-1], partition, task, rows, writes))
        except OSError:
            self._writers.remove(writer)
            return False
        return True


def drive(query: Query, first: int, count: int, writers: Sequence[Connection], reports: Connection, fault: str) -> bool:
    """Run a driver for ``count`` batches, beginning with ``first``, and report each over ``reports``.

    Returns whether the fault struck.
    """
    crash_points.disarm()
    crash_points.arm_from(fault)
    staging = Staging(query.staging) if query.staging else None
    settings = Settings(keep_batches=query.keep_batches)
    coordinator = Coordinator([query.sink], LocalFiles(query.root / "twopc"), settings=settings, staging=staging)
    jobs: list[int] = []
    try:
        for batch in range(first, first + count):
            checkpoint = Batch(query.query_id, batch, query.offsets_of(batch) or (), query.offsets_of)
            coordinator.process(checkpoint, Engine(query, writers, jobs))
            reports.send(("done", batch))
    except (TwoPhaseCommitError, crash_points.InjectedFault) as error:
        reports.send(("failed", f"{type(error).__name__}: {error}"))
    return _has_struck(fault)
