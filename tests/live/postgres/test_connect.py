from __future__ import annotations

import contextlib
import logging
import traceback
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.live.postgres.support import new_role
from twopc.sinks.postgres.options import Address

if TYPE_CHECKING:
    from tests.live.postgres.services import PostgresService

_CANARY = "canary-1234"


def test_a_connection_identifies_its_sink_and_hides_its_password(database: str) -> None:
    with contextlib.closing(Address(database).connect("orders", timeout_ms=5_000)) as connection:
        assert connection.execute("SHOW application_name").fetchone() == ("twopc/orders",)
        assert connection.execute("SHOW client_encoding").fetchone() == ("UTF8",)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        password = conninfo_to_dict(database)["password"]
        assert str(password) not in f"{connection!r} {connection.info.dsn}"


def test_a_password_may_contain_a_tab_and_a_line_break(database: str) -> None:
    password = "pa\tss\n"  # noqa: S105 - of a role that exists only in this test
    with new_role(database) as given:
        name = str(conninfo_to_dict(given)["user"])
        with contextlib.closing(psycopg.connect(database, autocommit=True)) as owner:
            owner.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(name), sql.Literal(password)))
        right, wrong = (make_conninfo(given, password=one) for one in (password, f"{password}x"))
        Address(right).connect("orders", timeout_ms=5_000).close()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            Address(wrong).connect("orders", timeout_ms=5_000)


def test_a_server_that_accepts_no_writes_is_refused(database: str) -> None:
    only_reads = make_conninfo(database, options="-c default_transaction_read_only=on")
    with pytest.raises(psycopg.OperationalError, match="session is read-only"):
        Address(only_reads).connect("orders", timeout_ms=5_000)


@pytest.mark.parametrize(
    "changed", [{"password": _CANARY}, {"user": "nobody", "password": _CANARY}, {"port": "1", "password": _CANARY}]
)
def test_a_failed_connection_shows_no_password(
    postgres_server: PostgresService, changed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    address = Address(make_conninfo(postgres_server.dsn, **changed))
    with caplog.at_level(logging.DEBUG), pytest.raises(psycopg.OperationalError) as failed:
        address.connect("orders", timeout_ms=5_000)
    shown = "".join(traceback.format_exception(failed.value)) + caplog.text
    assert "connection" in shown
    assert _CANARY not in shown
