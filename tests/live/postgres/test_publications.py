"""A publication of all tables also sends the sink's own tables to subscribers, so the sink warns about it at startup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.live.postgres.support import case_of, run
from twopc.testing.contract.drivers import Driver

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]


_WARNING = "the publication everything also publishes the sink's own tables in the schema 'twopc'"


@pytest.mark.parametrize("published", ["ALL TABLES", "TABLES IN SCHEMA twopc"])
def test_a_start_warns_if_the_sinks_own_tables_are_published(
    published: str, database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    case = case_of(database)
    Driver(case.sink)
    assert caplog.messages == []
    run(connection, f"CREATE PUBLICATION everything FOR {published}")
    Driver(case.sink)
    assert _WARNING in caplog.text


@pytest.mark.parametrize("published", ["TABLES IN SCHEMA public", "TABLE target"])
def test_a_publication_of_the_users_tables_causes_no_warning(
    published: str, database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    case = case_of(database)
    run(connection, f"CREATE PUBLICATION everything FOR {published}")
    Driver(case.sink)
    assert caplog.messages == []
