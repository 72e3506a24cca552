"""The sink's settings change between a decision and its publish. The batch is published as it was decided."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from tests.live.one_task import Tasks, batch
from tests.live.postgres.support import left_behind, run, sink_of
from tests.live.postgres.votes import votes
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.sinks.postgres.handle import PostgresHandle
from twopc.testing.contract.drivers import Driver, batch_of, opened
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from twopc.sinks.postgres import PostgresSink

    Connection = psycopg.Connection[Any]

_TARGET = "CREATE TABLE target (id bigint, a int, b int)"
_INDEX = "CREATE UNIQUE INDEX one_row ON target (id)"
_UPSERT = {"mode": "upsert", "key": "id", "order_by": "a"}
_OLD, _HIGH_A, _HIGH_B = (1, 0, 0), (1, 2, 1), (1, 1, 2)


def rows(*given: tuple[int, int, int]) -> pa.RecordBatch:
    ids, a, b = zip(*given, strict=True)
    return batch(id=pa.array(ids, pa.int64()), a=pa.array(a, pa.int32()), b=pa.array(b, pa.int32()))


def content(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT * FROM target ORDER BY id, a, b").fetchall()


def decided(sink: PostgresSink, *tasks: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Stage and confirm a batch, as a driver does that dies right after its decision. Return what the decision contains."""
    driver = Driver(sink)
    scan_start = driver.begin()
    handles = [driver.prepare(some, partition=number) for number, some in enumerate(tasks)]
    driver.committer.confirm(handles, 0)
    return json.loads(json.dumps([sink.encode_handle(handle) for handle in handles])), scan_start


def restarted(sink: PostgresSink, stored: list[dict[str, Any]], scan_start: dict[str, Any]) -> tuple[list[Any], str]:
    """Recover the decision with a new driver; return the evidence and the blockers."""
    committer = Driver(sink).committer
    found = committer.initialize_state([sink.decode_handle(handle) for handle in stored], scan_start)
    return list(found.values()), "; ".join(committer.blockers())


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, _UPSERT, [_OLD, _HIGH_B, _HIGH_A]),  # 42P10 without the cure: the table has no unique index
        (_UPSERT, {}, [_HIGH_A]),  # 23505 without the cure
        (_UPSERT, {**_UPSERT, "order_by": "b"}, [_HIGH_A]),  # another row wins without the cure
        (_UPSERT, {**_UPSERT, "order_by": ()}, [_HIGH_A]),  # 21000 without the cure
        (_UPSERT, {**_UPSERT, "key": ("id", "b")}, [_HIGH_A]),  # 42P10 without the cure
    ],
    ids=["append to upsert", "upsert to append", "another order", "no order", "another key"],
)
def test_a_batch_is_published_with_the_settings_of_its_decision(
    before: dict[str, Any], after: dict[str, Any], expected: list[Any], database: str, connection: Connection
) -> None:
    run(connection, _TARGET, "INSERT INTO target VALUES (1, 0, 0)", *([_INDEX] if before else []))
    stored = decided(sink_of(database, **before), rows(_HIGH_A), rows(_HIGH_B))
    found, blockers = restarted(sink_of(database, **after), *stored)
    assert found == [Evidence.COMMITTED] * 2, blockers
    assert content(connection) == expected


@pytest.mark.parametrize("setting", ["mode", "key", "order_by"])
def test_a_handle_without_a_setting_of_its_decision_is_refused_and_not_guessed(setting: str) -> None:
    sink = sink_of("dbname=nowhere")
    stored = sink.encode_handle(PostgresHandle("t", 1, ("id",), (), "", "", (1,), "upsert", ("id",), ()))
    del stored[setting]
    with pytest.raises(msgspec.ValidationError, match=f"missing required field `{setting}`"):
        sink.decode_handle(stored)


def test_an_appended_batch_never_replaces_rows_although_the_sink_upserts_now(
    database: str, connection: Connection
) -> None:
    """The new unique index rejects the rows. Without the cure, an existing row and a decided row are lost silently."""
    run(connection, _TARGET, "INSERT INTO target VALUES (1, 0, 0)")
    stored = decided(sink_of(database), rows(_HIGH_A), rows(_HIGH_B))
    run(connection, _INDEX)
    found, blockers = restarted(sink_of(database, **_UPSERT), *stored)
    assert found == [Evidence.UNKNOWN] * 2
    assert 'violates unique constraint "one_row"' in blockers
    assert content(connection) == [_OLD]
    run(connection, "DROP INDEX one_row")
    assert restarted(sink_of(database), *stored)[0] == [Evidence.COMMITTED] * 2
    assert content(connection) == [_OLD, _HIGH_B, _HIGH_A]


def test_an_upserted_batch_waits_for_its_unique_index_although_the_sink_appends_now(
    database: str, connection: Connection
) -> None:
    """Without the cure, rows with the same key are appended."""
    run(connection, _TARGET, _INDEX, "INSERT INTO target VALUES (1, 0, 0)")
    stored = decided(sink_of(database, **_UPSERT), rows(_HIGH_A), rows(_HIGH_B))
    run(connection, "DROP INDEX one_row")
    found, blockers = restarted(sink_of(database), *stored)
    assert found == [Evidence.UNKNOWN] * 2
    assert "upserts by (id), but public.target has no unique index on this key. Create the index again" in blockers
    assert content(connection) == [_OLD]
    run(connection, _INDEX)
    assert restarted(sink_of(database), *stored)[0] == [Evidence.COMMITTED] * 2
    assert content(connection) == [_HIGH_A]


def test_a_vote_that_was_rolled_back_is_published_with_the_settings_of_its_decision(
    database: str, connection: Connection
) -> None:
    run(connection, _TARGET, _INDEX)
    stored = decided(sink_of(database, vote="prepared", **_UPSERT), rows(_HIGH_A, _HIGH_B))
    for vote in votes(connection):
        run(connection, f"ROLLBACK PREPARED '{vote}'")
    found, blockers = restarted(sink_of(database, vote="prepared"), *stored)
    assert found == [Evidence.COMMITTED], blockers
    assert content(connection) == [_HIGH_A]


def test_lost_rows_of_an_appended_batch_are_not_upserted(database: str, connection: Connection, tmp_path: Path) -> None:
    """Fails if the repair uses the new settings: then some of the batch's rows replace other rows of the batch."""
    run(connection, _TARGET)

    def lose() -> None:
        [(stage,), _] = connection.execute("SELECT right(txn, 32) FROM twopc.slice ORDER BY rows").fetchall()
        run(connection, f"DROP TABLE twopc.stage_{stage}")
        raise InjectedFault

    def process(sink: PostgresSink) -> None:
        coordinator = Coordinator([sink], LocalFiles(tmp_path))
        opened.append(coordinator)
        coordinator.process(batch_of(0), Tasks([sink], rows(_HIGH_A), rows(_HIGH_B, (2, 2, 2))))

    crash_points.arm("driver.decided", lose)
    with pytest.raises(InjectedFault):
        process(sink_of(database))
    run(connection, _INDEX)
    with pytest.raises(
        ConfigurationError,
        match=r"batch 0 is decided, but some .* belong in table target with mode='append', but the sink would now write "
        r"them to table target with mode='upsert', key=\('id',\), order_by=\('a',\)\. "
        r"Nothing more was written, .* Set the sink back",
    ):
        process(sink_of(database, **_UPSERT))
    run(connection, "DROP INDEX one_row")
    process(sink_of(database))
    assert content(connection) == [_HIGH_B, _HIGH_A, (2, 2, 2)]
    assert left_behind(database)["stages"] == 0
