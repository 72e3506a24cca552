"""A small exactly-once sink that writes each task's rows to a JSON lines file in a directory that all processes share.

Each transaction is one file. The file's directory shows the transaction's state, and ``rename`` changes the state:
``open`` -> ``prepared`` -> ``committed`` or ``aborted``. If two processes try the same change, one of them fails. Readers read
``committed``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.attempt import Evidence
from twopc.errors import RetriableError, UnavailableError
from twopc.fenced_committer import FencedCommitter, Prepared, transaction_name
from twopc.sink import TwoPhaseCommitSink
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from twopc.attempt import TaskAttempt

STATES = ("open", "prepared", "committed", "aborted")
PROOFS = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}


@dataclass(frozen=True)
class FilesSink(TwoPhaseCommitSink[Prepared]):
    """Describes the sink. Users create this object. It is small and picklable, and has no connection."""

    name: str
    directory: str
    timeout_ms: int = 10_000
    handle_type: type[Prepared] = Prepared

    def create_writer(self, task: TaskAttempt) -> FileWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return FileWriter(self, task)

    def create_committer(self) -> FileCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return FileCommitter(self)

    @property
    def root(self) -> Path:
        """The directory that contains the files. The first use creates it."""
        root = Path(self.directory)
        for state in STATES:
            (root / state).mkdir(parents=True, exist_ok=True)
        return root

    def move(self, name: str, before: str, after: str) -> bool:
        """Move a transaction to its next state, durably. Return False if the transaction is not in the state ``before``."""
        moved = True
        try:
            (self.root / before / name).rename(self.root / after / name)
        except FileNotFoundError:
            moved = False  # another process may have moved the file, and died before the move was durable
        for state in (after, before):
            sync(self.root / state)
        return moved

    def give_up(self, name: str) -> None:
        """Abort a transaction that is not committed."""
        if not self.move(name, "open", "aborted"):
            self.move(name, "prepared", "aborted")

    def state_of(self, name: str) -> str | None:
        """Find a transaction's state; None if the transaction never existed."""
        return next((state for state in reversed(STATES) if (self.root / state / name).exists()), None)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileWriter(SinkWriter[Prepared]):
    """Writes the rows of one task attempt to one file."""

    def __init__(self, sink: FilesSink, task: TaskAttempt) -> None:
        self._sink, self._name = sink, transaction_name(sink.name, task)

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        (self._sink.root / "open" / self._name).touch(exist_ok=False)

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`."""
        try:
            # If a sweep has moved the file, mode "a" would create a new file without the earlier rows.
            with (self._sink.root / "open" / self._name).open("r+") as file:
                file.seek(0, os.SEEK_END)
                file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())
        except FileNotFoundError as error:
            raise self._swept() from error

    def pre_commit(self) -> Prepared:
        """See :class:`SinkWriter`."""
        with contextlib.suppress(FileNotFoundError):
            sync(self._sink.root / "open" / self._name)
        if not self._sink.move(self._name, "open", "prepared"):
            raise self._swept()
        return Prepared(self._name, self.rows)

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        self._sink.give_up(self._name)

    def _swept(self) -> RetriableError:
        return RetriableError(f"{self._name} was swept, because a newer driver or attempt has taken over")


class FileCommitter(FencedCommitter[Prepared, Path]):
    """The driver's side of the sink during one run of the query. Each step locks the directory."""

    def __init__(self, sink: FilesSink) -> None:
        super().__init__(sink.name)
        self._sink = sink

    @contextlib.contextmanager
    def step(self) -> Iterator[Path]:
        """See :class:`FencedCommitter`."""
        root = self._sink.root
        with (root / "lock").open("a") as lock:
            deadline = time.monotonic() + self._sink.timeout_ms / 1000
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise UnavailableError(f"{root} stayed locked for {self._sink.timeout_ms} ms") from None
                    time.sleep(0.01)
            yield root

    @contextlib.contextmanager
    def observing(self) -> Iterator[Path]:
        """See :class:`FencedCommitter`. Create nothing, and do not wait for a running driver."""
        yield Path(self._sink.directory)

    def load(self, step: Path) -> bytes | None:
        """See :class:`FencedCommitter`."""
        path = step / f"{self.name}.driver.json"
        return path.read_bytes() if path.exists() else None

    def swap(self, step: Path, old: bytes | None, new: bytes) -> bool:
        """See :class:`FencedCommitter`. The step holds the lock, so the stored record is still ``old``."""
        del old
        path = step / f"{self.name}.driver.json"
        temporary = path.with_suffix(".new")
        temporary.write_bytes(new)
        sync(temporary)
        temporary.rename(path)
        sync(step)
        return True

    def is_prepared(self, step: Path, handle: Prepared) -> bool:
        """See :class:`FencedCommitter`."""
        try:
            with (step / "prepared" / handle.transaction).open() as file:
                return sum(1 for _ in file) == handle.rows
        except FileNotFoundError:
            return False

    def publish(self, step: Path, handle: Prepared, version: int) -> None:
        """See :class:`FencedCommitter`."""
        del step, version
        self._sink.move(handle.transaction, "prepared", "committed")

    def outcome(self, step: Path, handle: Prepared) -> Evidence:
        """See :class:`FencedCommitter`. A missing file proves nothing, because the directory may come from a backup."""
        del step
        return PROOFS.get(self._sink.state_of(handle.transaction) or "", Evidence.UNKNOWN)

    def roll_back(self, step: Path, transaction: str, version: int) -> None:
        """See :class:`FencedCommitter`."""
        del step, version
        self._sink.give_up(transaction)

    def pending(self, step: Path) -> Iterator[str]:
        """See :class:`FencedCommitter`."""
        for state in ("open", "prepared"):
            yield from [path.name for path in (step / state).glob(f"{self.name}-*")]
