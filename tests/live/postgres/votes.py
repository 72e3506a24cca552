"""Helpers for the tests of `vote="prepared"`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.postgres.support import case_of, run
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sink import TwoPhaseCommitSink
    from twopc.testing.contract import Case


def prepared_of(dsn: str, columns: str = "value bigint UNIQUE", **arguments: Any) -> Case:
    """A case of the contract suite whose table only the publish can check."""
    return case_of(dsn, columns, vote="prepared", **arguments)


def votes(connection: psycopg.Connection[Any]) -> list[str]:
    """The prepared transactions of the test's own database."""
    found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 1")
    return [name for (name,) in found]


def confirmed(sink: TwoPhaseCommitSink[Any], *rows: int) -> tuple[Driver, Any, Any]:
    """A driver that has voted and not decided."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers(rows))
    driver.committer.confirm([handle], 0)
    return driver, handle, scan_start


@pytest.fixture(autouse=True)
def no_vote_is_left(database: str) -> Iterator[None]:
    """Require that the test leaves no vote. A database with a vote could not be dropped."""
    yield
    with contextlib.closing(psycopg.connect(database, autocommit=True)) as connection:
        left = votes(connection)
        for name in left:
            run(connection, f"ROLLBACK PREPARED '{name}'")
    assert left == []
