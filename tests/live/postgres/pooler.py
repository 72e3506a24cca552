"""pgbouncer in transaction mode, in front of a local PostgreSQL server."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LocalServer

if TYPE_CHECKING:
    from twopc.integration.services.postgres import LocalPostgres

PROGRAM = shutil.which("pgbouncer")
#: Fewer sessions than a query has connections, so that each transaction may get another session.
SESSIONS = 2
_UNPRIVILEGED = "nobody"


class LocalPooler(LocalServer):
    """Clients of `dsn` share a few sessions of the server, each for one transaction at a time."""

    _START_TIMEOUT_S = 30

    def __init__(self, server: LocalPostgres) -> None:
        super().__init__("pgbouncer", ["pooler"], None)
        self._server = server
        self._user = pwd.getpwnam(_UNPRIVILEGED).pw_uid if os.geteuid() == 0 else None

    def dsn_of(self, dsn: str) -> str:
        """The connection string through the pooler for a database of the server."""
        return make_conninfo(dsn, host=HOST, port=self._ports["pooler"])

    def _program(self) -> list[str]:
        assert PROGRAM is not None
        return [PROGRAM]

    def _launch(self, program: list[str]) -> None:
        found = conninfo_to_dict(self._server.dsn)
        users, config = self.data_dir / "users.txt", self.data_dir / "pgbouncer.ini"
        users.write_text(f'"{found["user"]}" "{found["password"]}"\n')
        settings = {
            "listen_addr": HOST,
            "listen_port": self._ports["pooler"],
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": users,
            "pool_mode": "transaction",
            "default_pool_size": SESSIONS,
            # What a session keeps beyond its transaction fails at once.
            "server_reset_query": "DISCARD ALL",
            "server_reset_query_always": 1,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = ["[databases]", f"* = host={HOST} port={self._server.port}", "[pgbouncer]"]
        config.write_text("\n".join([*databases, *lines]) + "\n")
        if self._user is not None:
            for path in (self.data_dir, users, config):
                os.chown(path, self._user, -1)
        self._serve([*program, str(config)], self._is_ready)

    def _is_ready(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.dsn_of(self._server.dsn)).close()
            return True
        return False
