"""Helpers for the register tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twopc.attempt import Attempt, Claim
from twopc.files import LocalFiles
from twopc.records import Begin, Decision, Record, TaskReport, Truncation
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEGIN = Begin(query_id="a", first_batch=0, prior_offsets=())


def decision(batch: int) -> Decision:
    task = TaskReport(partition=0, rows=1, checksum=2**64 - 1, handles={"s": {"transaction": f"t{batch}\n\u2028"}})
    return Decision(
        query_id="a", batch_id=batch, attempt=Attempt(0, batch), offsets=(f"{batch}",), tasks=(task,), scan_start={}
    )


def truncation(log_start: int) -> Truncation:
    return Truncation(log_start=log_start, begin=BEGIN, ended=())


def claim(run: str) -> Claim:
    return Claim(query_id="a", run=run, deciding_log="registers")


def name(number: int) -> str:
    return f"registers/{number:020d}"


def records(log: RegisterLog) -> list[Record]:
    return [entry.record for entry in log.inspect().entries]


class FaultyFiles(LocalFiles):
    """Runs a hook, once, before or after an operation."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before_put: Callable[[], None] | None = None
        self.after_put: Callable[[], None] | None = None
        self.before_read: Callable[[], None] | None = None
        self.repeats_put = False

    def put_if_absent(self, name: str, data: bytes) -> bool:
        before, self.before_put = self.before_put, None
        if before:
            before()
        written = super().put_if_absent(name, data)
        if self.repeats_put:
            written = super().put_if_absent(name, data)
        after, self.after_put = self.after_put, None
        if after:
            after()
        return written

    def read(self, name: str) -> bytes | None:
        before, self.before_read = self.before_read, None
        if before:
            before()
        return super().read(name)


def no_answer() -> None:
    raise OSError("no answer")


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(tmp_path / "twopc")


@pytest.fixture
def log(files: FaultyFiles) -> RegisterLog:
    acquired = RegisterLog(files)
    acquired.acquire(claim("one"))
    return acquired


def assert_equal(actual: object, expected: object) -> None:
    """An assertion as an expression, for use in a lambda."""
    assert actual == expected
