"""Check that the sink fulfills the contract."""

from __future__ import annotations

import contextlib
import fcntl
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from files_sink import FilesSink

from twopc.attempt import Attempt, TaskAttempt
from twopc.errors import RetriableError
from twopc.testing.contract import Case, Driver, SinkContract, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


def numbers_in(sink: FilesSink) -> list[int]:
    """Read the numbers that a reader sees."""
    files = Path(sink.directory).glob("committed/*")
    return sorted(json.loads(line)["value"] for file in files for line in file.read_text().splitlines())


class TestFilesSink(SinkContract):
    """The contract suite for this sink."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        """Create a sink in a new directory."""
        sink = FilesSink("sample", str(tmp_path / "output"), timeout_ms=200)

        @contextlib.contextmanager
        def silence() -> Iterator[None]:
            with (sink.root / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

        return Case(sink, numbers, lambda: numbers_in(sink), silence=silence)

    def test_observing_a_sink_does_not_wait_for_a_running_driver(self, case: Case) -> None:
        """`twopc status --sinks` reads the directory while the query is running."""
        driver = Driver(case.sink)
        assert case.silence is not None
        with case.silence():
            seen = case.sink.create_committer().observe([], {})
        assert seen is not None and seen.record.driver_epoch == driver.driver_epoch

    def test_observing_a_sink_creates_no_files(self, tmp_path: Path) -> None:
        """The directory may be misspelled."""
        seen = FilesSink("sample", str(tmp_path / "absent")).create_committer().observe([], {})
        assert seen is not None and not seen.record.id
        assert not (tmp_path / "absent").exists()

    @pytest.mark.parametrize("step", ["write", "vote"])
    def test_a_swept_task_can_neither_write_nor_vote(self, step: str, case: Case) -> None:
        """The sweep has moved the task's file. A new file would contain only the rows that were written after the sweep."""
        driver = Driver(case.sink)
        writer = case.sink.create_writer(
            TaskAttempt("query-a", 0, Attempt(driver.driver_epoch, 1), 0, driver.driver_epoch, -1)
        )
        writer.write_rows(case.rows([1]))
        driver.committer.recover_and_abort([])
        with pytest.raises(RetriableError, match="swept"):
            writer.write_rows(case.rows([2])) if step == "write" else writer.snapshot_state(0)

    def test_an_incomplete_prepared_file_is_not_confirmed(self, case: Case) -> None:
        """The file is in the right place, but a row is missing."""
        driver = Driver(case.sink)
        handle = driver.prepare(case.rows([1, 2, 3]))
        path = Path(case.sink.directory, "prepared", handle.transaction)  # type: ignore[attr-defined]
        path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
        with pytest.raises(RetriableError, match="no longer complete"):
            driver.committer.confirm([handle], 0)
