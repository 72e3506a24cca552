"""Fixtures for the tests that use a real PostgreSQL."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.live.lending import lent
from tests.live.postgres.services import PostgresService, chosen, postgres_service
from tests.live.postgres.support import connected_to_new_database, new_database
from tests.live.postgres.type_cases import make_types
from twopc import crash_points
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.contract.drivers import close_opened

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    """After each test, no crash point stays armed and no driver stays connected."""
    crash_points.disarm()
    yield
    crash_points.disarm()
    close_opened()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresService]:
    """A real PostgreSQL shared by all tests in the run. Use the fixture `database`, or your own names."""
    with postgres_service(chosen()) as service:
        yield service


@pytest.fixture
def local_postgres(postgres_server: PostgresService) -> Iterator[LocalPostgres]:
    """The shared server, for a test that kills or pauses it; it is running again when the test ends."""
    yield from lent(postgres_server.local, f"TWOPC_POSTGRES={chosen()}")


@pytest.fixture(scope="session")
def older_postgres() -> Iterator[LocalPostgres]:
    """A server with the oldest version that is tested."""
    with LocalPostgres(version="16") as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresService) -> Iterator[str]:
    """The connection string of a new, empty database, which is dropped at the end."""
    with new_database(postgres_server.dsn) as dsn:
        yield dsn


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the superuser to the test's own database; each statement commits."""
    with contextlib.closing(psycopg.connect(database, autocommit=True)) as opened:
        yield opened


@pytest.fixture
def older_connection(older_postgres: LocalPostgres) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the superuser to a new database on the oldest version of the server."""
    with connected_to_new_database(older_postgres.dsn) as opened:
        yield opened


@pytest.fixture(scope="module")
def typed(postgres_server: PostgresService) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a separate database for the test file, with the types of `type_cases`. Each test creates its tables."""
    with connected_to_new_database(postgres_server.dsn) as opened:
        make_types(opened)
        yield opened


@pytest.fixture(scope="module")
def older(older_postgres: LocalPostgres) -> Iterator[psycopg.Connection[Any]]:
    """A connection like `typed`, but to a database on the oldest version of the server."""
    with connected_to_new_database(older_postgres.dsn) as opened:
        make_types(opened, has_extensions=False)
        yield opened
