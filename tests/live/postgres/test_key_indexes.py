"""Several unique indexes on an upsert's key. ON CONFLICT uses all of them, even one that considers other keys equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.one_task import OneTask, apply, batch
from tests.live.postgres.support import run, sink_of
from tests.live.postgres.votes import no_vote_is_left, votes
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.coordinator import Coordinator
from twopc.errors import CommitBlockedError, ConfigurationError
from twopc.files import LocalFiles
from twopc.testing.contract.drivers import batch_of, opened

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from twopc.sinks.postgres import PostgresSink

    Connection = psycopg.Connection[Any]

__all__ = ["no_vote_is_left"]

_TARGET = "CREATE TABLE target (email text PRIMARY KEY, n int)"
#: Ignores trailing spaces. A nondeterministic collation, which may ignore case, would need a server with ICU.
_LAX = "CREATE UNIQUE INDEX other ON target (email bpchar_pattern_ops)"
_LATER = "CREATE UNIQUE INDEX later ON target (email)"


def upserting(dsn: str, vote: str) -> PostgresSink:
    return sink_of(dsn, mode="upsert", key="email", vote=vote)


def row(email: str, n: int) -> pa.RecordBatch:
    return batch(email=pa.array([email]), n=pa.array([n], pa.int32()))


def content(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT email, n FROM target ORDER BY n").fetchall()


@pytest.mark.parametrize("vote", ["staged", "prepared"])
@pytest.mark.parametrize("index", [_LAX, f"{_LAX} WHERE 1 = 1", _LAX.replace("pattern_", "")])
def test_a_second_index_that_considers_other_keys_equal_is_refused_at_the_start(
    index: str, vote: str, database: str, connection: Connection
) -> None:
    """Without the cure, the second row replaces the first."""
    run(connection, _TARGET, index)
    with pytest.raises(
        ConfigurationError, match=r"an upsert would update a row with another key: drop the index other"
    ):
        apply(upserting(database, vote), row("a@x", 1))
    run(connection, "DROP INDEX other")
    for number, email in enumerate(("a@x", "a@x "), start=1):
        assert apply(upserting(database, vote), row(email, number)) == [Evidence.COMMITTED]
    assert content(connection) == [("a@x", 1), ("a@x ", 2)]


@pytest.mark.parametrize("vote", ["staged", "prepared"])
def test_a_deferrable_constraint_on_the_key_is_refused_at_the_start(
    vote: str, database: str, connection: Connection
) -> None:
    """PostgreSQL would reject every upsert."""
    run(connection, _TARGET, "ALTER TABLE target ADD CONSTRAINT late UNIQUE (email) DEFERRABLE")
    with pytest.raises(
        ConfigurationError, match=r"no upsert could be published: drop the constraint of the index late"
    ):
        apply(upserting(database, vote), row("a@x", 1))


def test_an_index_that_rejects_some_keys_but_not_for_on_conflict_is_left_to_the_table(
    database: str, connection: Connection
) -> None:
    run(connection, _TARGET, f"{_LAX} WHERE n > 5")
    for number, email in enumerate(("a@x", "a@x "), start=1):
        assert apply(upserting(database, "prepared"), row(email, number)) == [Evidence.COMMITTED]
    assert content(connection) == [("a@x", 1), ("a@x ", 2)]


@pytest.mark.parametrize("vote", ["staged", "prepared"])
@pytest.mark.parametrize(
    ("change", "words", "undone"),
    [
        (
            [_LAX],
            r"unique index other on this key.*keys equal that differ.*Drop this index or its constraint, and restart",
            [],
        ),
        (
            [_LAX, "ALTER TABLE target DROP CONSTRAINT target_pkey"],
            r"has no unique index on this key\. Create the index again, and restart the query",
            [_LATER],
        ),
    ],
)
def test_no_row_is_replaced_if_the_indexes_change_after_the_decision(
    change: list[str], words: str, undone: list[str], vote: str, database: str, connection: Connection, tmp_path: Path
) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES ('a@x', 1)")

    def alter() -> None:
        for name in votes(connection):
            run(connection, f"ROLLBACK PREPARED '{name}'")
        run(connection, *change)

    def start() -> None:
        sink = upserting(database, vote)
        coordinator = Coordinator([sink], LocalFiles(tmp_path))
        opened.append(coordinator)
        coordinator.process(batch_of(0), OneTask(sink, row("a@x ", 2)))

    crash_points.arm("driver.decided", alter)
    for _ in range(2):
        with pytest.raises(CommitBlockedError, match=words):
            start()
        assert content(connection) == [("a@x", 1)]
    run(connection, "DROP INDEX other", *undone)
    start()
    assert content(connection) == [("a@x", 1), ("a@x ", 2)]
