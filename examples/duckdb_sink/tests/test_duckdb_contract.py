"""Run the contract suite for the DuckDB sink, with a real file and a second process that keeps the file open."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from duckdb_sink import DuckDbCommitter, DuckDbSink, connect, create_tables, run

from twopc import (
    Attempt,
    ConfigurationError,
    Evidence,
    FencedError,
    Prepared,
    RetriableError,
    TaskAttempt,
    UnavailableError,
)
from twopc.testing.contract import Case, Driver, SinkContract

HOLD = "import duckdb, sys; db = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def rows(values: Sequence[int]) -> pa.RecordBatch:
    """Turn numbers into events."""
    return pa.record_batch({"key": [f"key-{value}" for value in values], "number": pa.array(values, pa.int64())})


def numbers_in(path: Path) -> list[int]:
    """Read the numbers that a reader sees."""
    with closing(connect(str(path), read_only=True)) as db:
        return [number for (number,) in run(db, "SELECT number FROM events ORDER BY number")]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Let another process open the file. A second connection in this process would not block anyone."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.stdin.close()


class TestDuckDbSink(SinkContract):
    """The contract suite for this sink."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        """Make a sink with its own file."""
        path = tmp_path / "events.db"
        create_tables(path)
        sink = DuckDbSink("events", str(path), timeout_ms=300)
        return Case(sink, rows, lambda: numbers_in(path), silence=lambda: held(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a file with the tables."""
    create_tables(tmp_path / "events.db")
    return tmp_path / "events.db"


@pytest.fixture
def sink(path: Path) -> DuckDbSink:
    """Make a sink for this file."""
    return DuckDbSink("events", str(path), timeout_ms=300)


def test_two_steps_never_overlap(sink: DuckDbSink) -> None:
    """The file lock keeps out other processes, but not other threads in this process."""
    with sink.step(), pytest.raises(UnavailableError, match="another step"), replace(sink, timeout_ms=50).step():
        pytest.fail("the second step ran while the first step was still open")


def test_a_fenced_driver_publishes_nothing(sink: DuckDbSink, path: Path) -> None:
    """One transaction both checks the driver and commits."""
    fenced = Driver(sink)
    scan_start = fenced.begin()
    handle = fenced.prepare(rows([1]))
    Driver(sink)
    with pytest.raises(FencedError):
        fenced.commit([handle], scan_start)
    assert numbers_in(path) == []


def test_a_swept_task_cannot_vote(sink: DuckDbSink) -> None:
    """The sweep has deleted the task's rows."""
    driver = Driver(sink)
    attempt = Attempt(driver.driver_epoch, 0)
    writer = sink.create_writer(TaskAttempt("query-a", 0, attempt, 0, driver.driver_epoch, -1))
    writer.write_rows(rows([1]))
    Driver(sink).committer.recover_and_abort([])
    with pytest.raises(RetriableError, match="can no longer vote"):
        writer.snapshot_state(0)


def test_a_vote_is_not_confirmed_if_some_of_its_rows_are_missing(sink: DuckDbSink) -> None:
    """For example, another program has deleted staged rows."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows([1, 2]))
    with sink.step() as db:
        run(db, "DELETE FROM twopc_staged WHERE number = 1")
    with pytest.raises(RetriableError):
        driver.commit([handle], scan_start)


def test_a_transaction_missing_from_the_file_proves_nothing(sink: DuckDbSink) -> None:
    """The transaction may be committed and forgotten, or missing from a backup. Its rows must not be written again."""
    unknown = Prepared(f"{sink.name}-1-0", 1)
    assert Driver(sink).committer.prove([unknown], {}) == {unknown: Evidence.UNKNOWN}


def test_a_kill_in_the_middle_of_a_commit_leaves_no_trace(
    sink: DuckDbSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after its INSERT and before its COMMIT."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows([1, 2]))

    publish = DuckDbCommitter.publish

    def publish_and_die(committer: DuckDbCommitter, step: Any, handle: Prepared, version: int) -> None:
        publish(committer, step, handle, version)
        os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(DuckDbCommitter, "publish", publish_and_die)
        try:
            driver.commit([handle], scan_start)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert numbers_in(path) == []
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert numbers_in(path) == [1, 2]


def test_a_wrong_path_or_a_file_without_the_tables_is_refused(sink: DuckDbSink, tmp_path: Path) -> None:
    """DuckDB would create the missing file, and no one would read the rows in it."""
    wrong = tmp_path / "wrong.db"
    with pytest.raises(RetriableError, match="no such file"):
        replace(sink, path=str(wrong)).create_committer().inspect()
    assert not wrong.exists()
    duckdb.connect(wrong).close()
    with pytest.raises(ConfigurationError, match=r"If the file is new, call create_tables\(path\)"):
        replace(sink, path=str(wrong)).create_committer().inspect()
    create_tables(wrong)
    replace(sink, path=str(wrong)).create_committer().inspect()


def test_a_creation_that_stopped_in_the_middle_can_be_repeated(sink: DuckDbSink, tmp_path: Path) -> None:
    """DuckDB commits after each statement. The table for the rows may also be older than the sink."""
    new = tmp_path / "new.db"
    with closing(duckdb.connect(new)) as db:
        run(db, "CREATE TABLE events (key VARCHAR NOT NULL, number BIGINT NOT NULL)")
        run(db, "INSERT INTO events VALUES ('key-7', 7)")
    with pytest.raises(ConfigurationError, match=r"call create_tables\(path\)"):
        replace(sink, path=str(new)).create_committer().inspect()
    create_tables(new)
    replace(sink, path=str(new)).create_committer().inspect()
    assert numbers_in(new) == [7]


@pytest.mark.parametrize("table", ["events", "twopc_control", "twopc_transactions", "twopc_staged"])
def test_a_file_without_one_of_the_tables_is_refused_before_another_driver_is_fenced(
    sink: DuckDbSink, path: Path, table: str
) -> None:
    """A start that will be refused must not harm a healthy driver."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(rows([1, 2]))
    backup = path.read_bytes()
    with sink.step() as db:
        run(db, f"DROP TABLE {table}")
    with pytest.raises(ConfigurationError, match=f"(?s){table}.*lost a table, restore the file from a backup"):
        sink.create_committer().inspect()
    path.write_bytes(backup)
    sink.create_committer().inspect()
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert numbers_in(path) == [1, 2]
