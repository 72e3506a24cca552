"""An exactly-once sink for DuckDB. It writes each of a query's rows once into the table ``events``.

DuckDB keeps a database in one file, and only one process at a time can open this file for writing. So every step opens the
file, runs one transaction and closes the file. During a step, no other thread or process can write.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from twopc import (
    BadRecordError,
    ConfigurationError,
    Evidence,
    FencedCommitter,
    Prepared,
    RetriableError,
    SchemaError,
    SinkWriter,
    TaskAttempt,
    TwoPhaseCommitSink,
    UnavailableError,
    transaction_name,
)

TABLES = """
CREATE TABLE IF NOT EXISTS events (key VARCHAR NOT NULL, number BIGINT NOT NULL);

CREATE TABLE IF NOT EXISTS twopc_control (sink VARCHAR PRIMARY KEY, record BLOB NOT NULL); -- who drives each sink
CREATE TABLE IF NOT EXISTS twopc_transactions ( -- one row for each task attempt; its state is the marker
    name VARCHAR PRIMARY KEY, sink VARCHAR NOT NULL, version BIGINT NOT NULL DEFAULT 0,
    state VARCHAR NOT NULL CHECK (state IN ('open', 'prepared', 'committed', 'aborted'))
);
CREATE TABLE IF NOT EXISTS twopc_staged (name VARCHAR NOT NULL, key VARCHAR, number BIGINT); -- rows that readers do not see
"""
COLUMNS = {"key": (pa.string(), pa.large_string()), "number": (pa.int64(), pa.int32(), pa.int16(), pa.int8())}
PROOFS = {"committed": Evidence.COMMITTED, "aborted": Evidence.ABORTED}

# All connections from one process to a file share one database, whose transactions do not lock the rows that they read.
# So after a step has checked that its driver is not fenced, the next driver could still fence that driver before the
# step publishes. The file lock does not prevent this race, because the process already holds the lock.
_one_step = threading.Lock()


def create_tables(path: Path) -> None:
    """Create the table for the rows and the sink's own tables, except those that exist. Call this function for a new file."""
    with closing(duckdb.connect(path)) as db:
        db.execute(TABLES)


def connect(path: str, timeout_ms: int = 30_000, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
    """Open the file as soon as no other process has it open. Readers must also use this function; the sink waits for readers."""
    ends_at = time.monotonic() + timeout_ms / 1000
    while True:
        if not Path(path).is_file():
            # Without this check, DuckDB would create the file.
            raise FileNotFoundError(
                "no such file. If it is new, call create_tables(path). If it was lost, restore a backup"
            )
        try:
            return duckdb.connect(path, read_only=read_only)
        except duckdb.OperationalError:  # DuckDB's message identifies the process that has the file open
            if time.monotonic() >= ends_at:
                raise
        time.sleep(random.uniform(0.005, 0.05))


def run(db: duckdb.DuckDBPyConnection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run one statement and read its result. DuckDB rejects the next statement while a result is unread."""
    return db.execute(statement, values).fetchall()


@dataclass(frozen=True)
class DuckDbSink(TwoPhaseCommitSink[Prepared]):
    """Appends rows to the table ``events`` of a DuckDB file on this machine.

    Attributes:
        name: the sink name, which must stay the same across restarts.
        path: the path of the file that :func:`create_tables` created.
        timeout_ms: how long a step waits for the file while another process has it open.
    """

    name: str
    path: str
    timeout_ms: int = 30_000
    handle_type = Prepared
    columns = COLUMNS.keys()

    def check_schema(self, schema: pa.Schema) -> None:
        """See the base class."""
        for name, types in COLUMNS.items():
            if (found := schema.field(name).type) not in types:
                raise SchemaError(f"column {name!r} is {found}, but the table needs {types[0]}: cast it")

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See the base class."""
        for name in COLUMNS:
            if rows.column(name).null_count:
                raise BadRecordError(f"column {name!r} contains a null: replace it (coalesce) or filter out the row")

    def create_writer(self, task: TaskAttempt) -> "DuckDbWriter":
        """See the base class."""
        return DuckDbWriter(self, task)

    def create_committer(self) -> "DuckDbCommitter":
        """See the base class."""
        return DuckDbCommitter(self)

    @contextmanager
    def step(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Run one transaction. No other step overlaps it, and it is durable once COMMIT has returned."""
        if not _one_step.acquire(timeout=self.timeout_ms / 1000):
            raise UnavailableError(
                f"{self.path}: another step in this process still had the database open after {self.timeout_ms} ms"
            )
        try:
            with closing(connect(self.path, self.timeout_ms)) as db:
                run(db, "BEGIN")
                yield db
                run(db, "COMMIT")  # if an error skips this line, closing the connection rolls the transaction back
        except (duckdb.Error, FileNotFoundError) as error:
            raise UnavailableError(f"{self.path}: {error}") from error
        finally:
            _one_step.release()


def move(db: duckdb.DuckDBPyConnection, name: str, before: str, after: str, version: int = 0) -> bool:
    """Move a transaction to its next state. Return False and change nothing if the transaction is not in the state ``before``."""
    change = "UPDATE twopc_transactions SET state = ?, version = ? WHERE name = ? AND state = ? RETURNING name"
    return run(db, change, after, version, name, before) != []


def state_of(db: duckdb.DuckDBPyConnection, name: str) -> str | None:
    """Read a transaction's state; None if the transaction does not exist."""
    found = run(db, "SELECT state FROM twopc_transactions WHERE name = ?", name)
    return found[0][0] if found else None


def give_up(db: duckdb.DuckDBPyConnection, name: str, version: int = 0) -> None:
    """Abort a transaction and delete its rows. Its state stays as proof that the rows never become visible."""
    if move(db, name, "open", "aborted", version) or move(db, name, "prepared", "aborted", version):
        run(db, "DELETE FROM twopc_staged WHERE name = ?", name)


class DuckDbWriter(SinkWriter[Prepared]):
    """Stages the rows of one task attempt."""

    def __init__(self, sink: DuckDbSink, task: TaskAttempt) -> None:
        self._sink, self._name = sink, transaction_name(sink.name, task)

    def begin_transaction(self) -> None:
        """See the base class."""
        # The transaction is recorded before its first row, so that the sweep finds every row.
        with self._sink.step() as db:
            begin = "INSERT INTO twopc_transactions (name, sink, state) VALUES (?, ?, 'open')"
            run(db, begin, self._name, self._sink.name)

    def write(self, rows: pa.RecordBatch) -> None:
        """See the base class."""
        self._sink.check_rows(rows)
        with self._sink.step() as db:
            if state_of(db, self._name) != "open":
                raise RetriableError(f"{self._name} was swept, because a newer driver or attempt has taken over")
            db.register("new_rows", pa.Table.from_batches([rows]))
            run(db, "INSERT INTO twopc_staged SELECT ?, key, number FROM new_rows", self._name)

    def pre_commit(self) -> Prepared:
        """See the base class."""
        with self._sink.step() as db:
            if not move(db, self._name, "open", "prepared"):
                raise RetriableError(f"{self._name} was swept and can no longer vote")
        return Prepared(self._name, self.rows)

    def abort(self) -> None:
        """See the base class."""
        try:
            with self._sink.step() as db:
                give_up(db, self._name)
        except UnavailableError:
            """The driver's sweep will end the transaction."""


class DuckDbCommitter(FencedCommitter[Prepared, duckdb.DuckDBPyConnection]):
    """Publishes the rows of decided transactions, and sweeps all other transactions."""

    def __init__(self, sink: DuckDbSink) -> None:
        super().__init__(sink.name)
        self._sink = sink

    def step(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """See the base class."""
        return self._sink.step()

    def check_store(self, step: duckdb.DuckDBPyConnection) -> None:
        """See the base class."""
        try:
            every = (
                "SELECT events.key, events.number FROM events, twopc_control, twopc_transactions, twopc_staged LIMIT 0"
            )
            run(step, every)
        except duckdb.ProgrammingError as error:
            # If a later call created only the lost tables, decided rows or proofs would be missing from them.
            raise ConfigurationError(
                f"sink {self.name!r}: {error}. If the file is new, call create_tables(path). If it has lost a table, restore "
                "the file from a backup, because a new table would contain neither decided rows nor proofs"
            ) from error

    def load(self, step: duckdb.DuckDBPyConnection) -> bytes | None:
        """See the base class."""
        found = run(step, "SELECT record FROM twopc_control WHERE sink = ?", self.name)
        return found[0][0] if found else None

    def swap(self, step: duckdb.DuckDBPyConnection, old: bytes | None, new: bytes) -> bool:  # noqa: ARG002 -- see below
        """See the base class."""
        run(step, "INSERT OR REPLACE INTO twopc_control VALUES (?, ?)", self.name, new)
        return True  # no other step overlaps this step, so the stored record is still ``old``

    def is_prepared(self, step: duckdb.DuckDBPyConnection, handle: Prepared) -> bool:
        """See the base class."""
        [(staged,)] = run(step, "SELECT count(*) FROM twopc_staged WHERE name = ?", handle.transaction)
        return state_of(step, handle.transaction) == "prepared" and staged == handle.rows

    def publish(self, step: duckdb.DuckDBPyConnection, handle: Prepared, version: int) -> None:
        """See the base class."""
        name = handle.transaction
        if move(step, name, "prepared", "committed", version):
            run(step, "INSERT INTO events SELECT key, number FROM twopc_staged WHERE name = ?", name)
            run(step, "DELETE FROM twopc_staged WHERE name = ?", name)

    def outcome(self, step: duckdb.DuckDBPyConnection, handle: Prepared) -> Evidence:
        """See the base class."""
        return PROOFS.get(state_of(step, handle.transaction) or "", Evidence.UNKNOWN)

    def roll_back(self, step: duckdb.DuckDBPyConnection, transaction: str, version: int) -> None:
        """See the base class."""
        give_up(step, transaction, version)

    def pending(self, step: duckdb.DuckDBPyConnection) -> list[str]:
        """See the base class."""
        found = "SELECT name FROM twopc_transactions WHERE sink = ? AND state IN ('open', 'prepared')"
        return [name for (name,) in run(step, found, self.name)]

    def forget_before(self, step: duckdb.DuckDBPyConnection, version: int) -> None:
        """See the base class."""
        old = "DELETE FROM twopc_transactions WHERE sink = ? AND version < ? AND state IN ('committed', 'aborted')"
        run(step, old, self.name, version)
