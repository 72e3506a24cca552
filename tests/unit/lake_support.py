"""What the tests of the sinks for lakehouse tables share. Each format has a shop: a table, and what its users may do to it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pytest

from twopc.attempt import Attempt, TaskAttempt
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import QUERY_ID, Driver, run_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twopc.attempt import Evidence

#: Sends a commit. May be called later, or never.
Send = Callable[[], Any]


class LakeShop(Protocol):
    """A table ``orders`` with the columns ``value`` and ``note``, and a sink of the same name."""

    refused: ClassVar[type[Exception]]
    sink: Any

    def named(self, name: str, **settings: Any) -> Any:
        """A sink with another name or other settings."""

    def values(self) -> list[int]:
        """The values in the table, in order."""

    def commits(self) -> int:
        """How many commits the table has had."""

    def files(self, pattern: str = "*") -> list[Path]:
        """The files of this table's sinks."""

    def named_files(self) -> set[str]:
        """The names of all data files that are in the table."""

    def garbage(self) -> list[Path]:
        """The files that the table's maintenance would delete now."""

    def view(self) -> Any:
        """The table as a task reads it now."""

    def append(self, *values: int) -> None:
        """A commit by another writer."""

    def overtake(self) -> None:
        """A commit by another writer, with which a commit that is based on the version before it fails."""

    def commit_as_spark(self, query_id: str, batch: int) -> None:
        """An empty commit, like the one that Spark's own streaming writer makes now for a batch."""

    def alter(self) -> None:
        """Alter the table's definition."""

    def roll_back(self) -> None:
        """Return to the table before its newest commit, with a new commit."""

    def recreate(self) -> None:
        """Delete the table, and create it again."""

    def backup(self) -> Any:
        """Copy the data that says which files are in the table."""

    def restore(self, backup: Any) -> None:
        """Put such a copy in its place again."""

    def lose_newest_commit(self, before: Any) -> None:
        """Put the table back to the copy that was made before its newest commit, but keep its files."""

    def silent(self) -> AbstractContextManager[None]:
        """Make the table unreadable in the meantime."""

    def next_commits(self, *faults: Callable[[Send], Any]) -> AbstractContextManager[None]:
        """Pass the next commits of this process to these functions, one each."""


def prepare(driver: Driver, sink: Any, *values: int, batch: int = 0, attempt: int = 1) -> Any:
    """Run one task of an attempt at a batch; return its handle."""
    return run_task(sink, task_of(driver, batch, attempt), numbers(values))


def evidence(driver: Driver, handles: Sequence[Any], scan_start: Mapping[str, Any]) -> list[Evidence]:
    """Commit, and return the evidence in the order of the handles."""
    found = driver.committer.commit(handles, scan_start)
    return [found[handle] for handle in handles]


def task_of(driver: Driver, batch: int = 0, attempt: int = 1) -> TaskAttempt:
    """A task of an attempt at a batch."""
    return TaskAttempt(QUERY_ID, batch, Attempt(driver.driver_epoch, attempt), 0, driver.driver_epoch, -1)


_LONG_MS = 8 * 24 * 3_600_000


def prepare_long_ago(shop: Any, driver: Driver, *values: int) -> Any:
    """Like :func:`prepare`, but the files are eight days old: older than a table's maintenance lets unused files be."""
    with long_ago():
        handle = prepare(driver, shop.sink, *values)
    for file in shop.files(f"{handle.transaction}*"):
        then_s = file.stat().st_mtime - _LONG_MS / 1000
        os.utime(file, (then_s, then_s))
    return handle


@contextlib.contextmanager
def long_ago() -> Iterator[None]:
    """Set this process's clock back in the meantime."""
    now = time.time_ns
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now() - _LONG_MS * 1_000_000)
        yield


def lost_answer(send: Send) -> None:
    """The commit takes effect, but its response is lost."""
    send()
    raise ConnectionError("the response was lost")


def lost_request(send: Send) -> None:
    """The commit never arrives."""
    del send
    raise ConnectionError("no answer")
