"""Nothing stays behind: stages are dropped, and slices and markers are forgotten, even while another session reads a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.live.postgres.support import case_of, left_behind, new_role, run, sink_of, values
from twopc import crash_points
from twopc.attempt import Evidence
from twopc.sinks.postgres import stages
from twopc.sinks.postgres.statements import Statements
from twopc.testing.contract import numbers
from twopc.testing.contract.drivers import Driver, Query, all_rows

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

_KEPT = 3


@pytest.mark.parametrize("batches", [8, pytest.param(200, marks=pytest.mark.whole)])
def test_the_sinks_own_tables_do_not_grow_with_the_number_of_batches(batches: int, database: str) -> None:
    driver = Driver(case_of(database).sink)
    kept = []
    for number in range(batches):
        kept.append(driver.begin())
        if number % 2:
            driver.prepare(numbers([-1]))  # an orphan
        assert driver.commit([driver.prepare(numbers([number]))], kept[-1]) == [Evidence.COMMITTED]
        driver.committer.recover_and_abort([])
        driver.committer.forget(kept[-_KEPT:][0])
    found = left_behind(database)
    assert (found["stages"], found["slice"]) == (0, 0)
    assert found["marker"] <= 2 * _KEPT
    assert values(database) == list(range(batches))


def test_a_reader_of_a_stage_delays_only_that_stages_drop(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup holds such locks for as long as it runs; meanwhile, the stages of every batch must go."""
    case = case_of(database)

    def read() -> None:
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'twopc' AND tablename ~ '^stage'"
        )
        [(name,), _] = names.fetchall()
        run(connection, "BEGIN", f"LOCK TABLE twopc.{name} IN ACCESS SHARE MODE")

    query = Query(case, tmp_path)
    crash_points.arm("driver.confirmed", read)
    query.run(0, 1, 2)
    assert left_behind(database)["stages"] == 1
    assert not caplog.records
    run(connection, "ROLLBACK")
    query.run(3)
    assert left_behind(database)["stages"] == 0
    assert case.visible() == all_rows(0, 1, 2, 3)


def test_a_drop_waits_only_briefly_for_a_reader_that_arrives_just_before_it(
    database: str,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(stages, "_DROP_LOCK_TIMEOUT_MS", 1)
    driver = Driver(case_of(database).sink)
    scan_start = driver.begin()
    handle = driver.prepare(numbers([1]))
    drop = driver.committer._statements.drop_stages  # type: ignore[attr-defined]

    def read_and_drop(_: Any, names: list[str], **named: Any) -> Any:
        run(connection, "BEGIN", f"LOCK TABLE twopc.stage_{names[0][-32:]} IN ACCESS SHARE MODE")
        return drop(names, **named)

    monkeypatch.setattr(Statements, "drop_stages", read_and_drop)
    assert driver.commit([handle], scan_start) == [Evidence.COMMITTED]
    assert "dropping stages failed and will be retried. No data is at risk" in caplog.text
    run(connection, "ROLLBACK")


def test_a_stage_of_a_former_role_keeps_no_other_stage(
    database: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """After a change of credentials, the new role publishes the former role's stage, but only the former role may drop it."""
    case_of(database)
    with new_role(database) as former, new_role(database) as role:
        old, new = (conninfo_to_dict(dsn)["user"] for dsn in (former, role))
        run(connection, f"CREATE SCHEMA twopc AUTHORIZATION {old}", f"GRANT SELECT, INSERT ON target TO {old}, {new}")
        ended = Driver(sink_of(former))
        scan_start = ended.begin()
        decided = ended.prepare(numbers([0]))
        ended.committer.confirm([decided], 0)
        run(connection, f"GRANT ALL ON SCHEMA twopc TO {new}", f"GRANT ALL ON ALL TABLES IN SCHEMA twopc TO {new}")
        driver = Driver(sink_of(role))
        assert driver.committer.initialize_state([decided], scan_start) == {decided: Evidence.COMMITTED}
        for number in (1, 2):
            scan_start = driver.begin()
            assert driver.commit([driver.prepare(numbers([number]))], scan_start) == [Evidence.COMMITTED]
        assert (left_behind(database)["stages"], left_behind(database)["slice"]) == (1, 1)
        [said] = [record.getMessage() for record in caplog.records]
        stage = f'"twopc"."stage_{decided.transaction[-32:]}"'
        assert f"role {old} owns stages that the sink's role cannot drop, such as {stage}." in said
        run(connection, f"ALTER TABLE {stage} OWNER TO {new}")
        driver.committer.recover_and_abort([])
        assert (left_behind(database)["stages"], left_behind(database)["slice"]) == (0, 0)
    assert values(database) == [0, 1, 2]


def test_many_stages_are_dropped_a_few_at_a_time(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that drops a thousand tables may need more locks than the server has, and would never end."""
    monkeypatch.setattr(stages, "_DROPPED_AT_ONCE", 2)
    driver = Driver(case_of(database).sink)
    driver.begin()
    for number in range(5):
        driver.prepare(numbers([number]))
    driver.committer.recover_and_abort([])
    assert left_behind(database) == {"stages": 0, "slice": 0, "marker": 5}


def test_a_failed_task_leaves_nothing_behind(database: str) -> None:
    case = case_of(database)
    driver = Driver(case.sink)
    with pytest.raises(Exception, match="null"):
        driver.prepare(numbers([1, None]))  # type: ignore[list-item]
    assert left_behind(database) == {"stages": 0, "slice": 0, "marker": 0}
