"""A small exactly-once sink: a directory that Spark's driver and workers share; each task's rows are a file of JSON lines.

A transaction is one file. Its state is the directory that it is in, and ``rename`` moves it, so of two that try, one fails:
``open`` -> ``prepared`` -> ``committed`` or ``aborted``. Readers read ``committed``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twopc.attempt import Evidence
from twopc.committer import SinkCommitter
from twopc.crash_points import crash_point
from twopc.errors import FencedError, RetriableError
from twopc.sink import TwoPhaseCommitSink
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from twopc.attempt import Claim, TaskAttempt

STATES = ("open", "prepared", "committed", "aborted")
NOBODY = {"id": "", "driver_epoch": 0, "run": "", "query_id": None, "attempts": 0, "decided": 0}


class LockedError(RetriableError):
    """Somebody else held the lock for too long. The outcome of this step is unknown."""


@dataclass(frozen=True)
class FileHandle:
    """The fact that the driver needs to commit: the file's name, which is unique forever."""

    transaction: str


@dataclass(frozen=True)
class FilesSink(TwoPhaseCommitSink[FileHandle]):
    """The sink: what a user writes down. Small, picklable, without a connection."""

    name: str
    directory: str
    timeout_ms: int = 10_000
    handle_type: type[FileHandle] = FileHandle

    def create_writer(self, task: TaskAttempt) -> FileWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return FileWriter(self, task)

    def create_committer(self) -> FileCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return FileCommitter(self)

    @property
    def root(self) -> Path:
        """Where the files are; made on first use."""
        root = Path(self.directory)
        for state in STATES:
            (root / state).mkdir(parents=True, exist_ok=True)
        return root

    def move(self, name: str, before: str, after: str) -> bool:
        """Move a transaction to its next state, durably. False: it is not in the expected state."""
        try:
            (self.root / before / name).rename(self.root / after / name)
        except FileNotFoundError:
            return False
        for state in (after, before):
            sync(self.root / state)
        return True

    def state_of(self, name: str) -> str | None:
        """The state of a transaction, None for a name that never existed."""
        return next((state for state in reversed(STATES) if (self.root / state / name).exists()), None)

    @contextlib.contextmanager
    def locked(self) -> Iterator[dict[str, Any]]:
        """The driver's record, for this step alone; what the step changes in it is durable when the step ends."""
        with (self.root / "lock").open("a") as lock:
            deadline = time.monotonic() + self.timeout_ms / 1000
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LockedError(f"{self.directory}: locked for {self.timeout_ms} ms") from None
                    time.sleep(0.01)
            path = self.root / "driver.json"
            record = json.loads(path.read_text()) if path.exists() else dict(NOBODY)
            before = dict(record)
            yield record
            if record != before:
                temporary = path.with_suffix(".new")
                temporary.write_text(json.dumps(record))
                sync(temporary)
                temporary.rename(path)
                sync(self.root)


def sync(path: Path) -> None:
    """Force a file, or a directory's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileWriter(SinkWriter[FileHandle]):
    """One task attempt: one file."""

    def __init__(self, sink: FilesSink, task: TaskAttempt) -> None:
        self._sink = sink
        self._name = f"{sink.name}-{task.driver_epoch}-{uuid.uuid4().hex}.jsonl"

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        (self._sink.root / "open" / self._name).touch(exist_ok=False)
        crash_point("task.began")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`."""
        with (self._sink.root / "open" / self._name).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())
        crash_point("task.written")

    def pre_commit(self) -> FileHandle:
        """See :class:`SinkWriter`."""
        sync(self._sink.root / "open" / self._name)
        if not self._sink.move(self._name, "open", "prepared"):
            raise RetriableError(f"{self._name} was aborted: a newer driver or attempt has replaced this one")
        crash_point("task.flushed")
        return FileHandle(self._name)

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        abort(self._sink, self._name)


def abort(sink: FilesSink, name: str) -> None:
    """Abort a transaction that is not committed."""
    if not sink.move(name, "open", "aborted"):
        sink.move(name, "prepared", "aborted")


class FileCommitter(SinkCommitter[FileHandle]):
    """The driver's side, for one run of the query."""

    def __init__(self, sink: FilesSink) -> None:
        self._sink = sink
        self._seen: int | None = None
        self._driver_epoch = -1

    def binding(self) -> Mapping[str, str]:
        """See :class:`SinkCommitter`."""
        with self._sink.locked() as record:
            return {"id": record["id"]}

    def inspect(self) -> str | None:
        """See :class:`SinkCommitter`."""
        with self._sink.locked() as record:
            if self._seen is None:  # once: a later look could show a newer driver, which this one must not fence
                self._seen = record["driver_epoch"]
            query_id: str | None = record["query_id"]
            return query_id

    def acquire(self, claim: Claim) -> int:
        """See :class:`SinkCommitter`."""
        with self._sink.locked() as record:
            if record["run"] != claim.run:  # otherwise this is our own call, retried
                if record["driver_epoch"] != self._seen:
                    raise self._fenced()
                decided = record["decided"] if record["query_id"] == claim.query_id else 0
                epoch = record["driver_epoch"] + 1
                record.update(driver_epoch=epoch, run=claim.run, query_id=claim.query_id, decided=decided)
                record["id"] = record["id"] or uuid.uuid4().hex
            self._driver_epoch = record["driver_epoch"]
        crash_point("driver.fenced")
        return self._driver_epoch

    def begin_attempt(self) -> Mapping[str, Any]:
        """See :class:`SinkCommitter`."""
        with self._driving() as record:
            record["attempts"] += 1
            return {"attempt": record["attempts"]}

    def has_newer_decision(self, scan_start: Mapping[str, Any]) -> bool:
        """See :class:`SinkCommitter`."""
        with self._sink.locked() as record:
            return int(record["decided"]) > int(scan_start.get("attempt", 0))

    def confirm(self, handles: Sequence[FileHandle], age_ms: float) -> None:
        """See :class:`SinkCommitter`."""
        del age_ms  # nothing expires here
        with self._driving():
            for handle in handles:
                if self._sink.state_of(handle.transaction) != "prepared":
                    raise RetriableError(f"{handle.transaction} is no longer prepared")

    def commit(self, handles: Sequence[FileHandle], scan_start: Mapping[str, Any]) -> Mapping[FileHandle, Evidence]:
        """See :class:`SinkCommitter`."""
        try:
            with self._driving() as record:
                record["decided"] = max(record["decided"], scan_start["attempt"])
                for handle in handles:
                    self._sink.move(handle.transaction, "prepared", "committed")
                    crash_point("driver.committing")
        except LockedError:
            return dict.fromkeys(handles, Evidence.UNKNOWN)
        return self.prove(handles, scan_start)

    def prove(self, handles: Sequence[FileHandle], scan_start: Mapping[str, Any]) -> Mapping[FileHandle, Evidence]:
        """See :class:`SinkCommitter`. Absence proves nothing: the directory may come from a backup."""
        del scan_start
        proofs = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}
        states = {handle: self._sink.state_of(handle.transaction) or "" for handle in handles}
        return {handle: proofs.get(state, Evidence.UNKNOWN) for handle, state in states.items()}

    def abort(self, handles: Sequence[FileHandle]) -> None:
        """See :class:`SinkCommitter`."""
        with contextlib.suppress(LockedError, FencedError), self._driving():
            for handle in handles:
                abort(self._sink, handle.transaction)

    def recover_and_abort(self, decided: Collection[FileHandle]) -> None:
        """See :class:`SinkCommitter`."""
        spared = {handle.transaction for handle in decided}
        with contextlib.suppress(LockedError, FencedError), self._driving():
            for state in ("open", "prepared"):
                for path in (self._sink.root / state).glob(f"{self._sink.name}-*"):
                    if path.name not in spared:
                        abort(self._sink, path.name)

    def close(self) -> None:
        """Nothing is kept open."""

    @contextlib.contextmanager
    def _driving(self) -> Iterator[dict[str, Any]]:
        """A step that only the driver may take."""
        with self._sink.locked() as record:
            if record["driver_epoch"] != self._driver_epoch:
                raise self._fenced()
            yield record

    def _fenced(self) -> FencedError:
        return FencedError(f"sink {self._sink.name!r}: another driver has acquired it; this run must stop")
