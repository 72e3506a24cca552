"""Create a PostgreSQL table, and read it with psycopg."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from twopc import PostgresSink
from twopc.integration.demo.stores.store import Store, TableOutput
from twopc.integration.services import ServiceError
from twopc.integration.services.jars import postgres_jdbc_jars
from twopc.integration.services.postgres import LocalPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class PostgresStore(Store):
    """A PostgreSQL server.

    Attributes:
        dsn: the server's connection string.
    """

    dsn: str

    @classmethod
    @contextlib.contextmanager
    def started(cls, directory: Path, bootstrap_servers: str) -> Iterator[PostgresStore]:
        """See :class:`Store`.

        The server has its own directory, because the server runs as another user if this process runs as root.
        """
        del directory, bootstrap_servers
        with LocalPostgres() as server:
            yield cls(server.dsn)

    def output(self, name: str, partitions: int) -> PostgresOutput:
        """See :class:`Store`."""
        del partitions
        return PostgresOutput(self.dsn, name)

    @property
    def jars(self) -> list[Path]:
        """See :class:`Store`."""
        return postgres_jdbc_jars()


@dataclass(frozen=True)
class PostgresOutput(TableOutput):
    """A PostgreSQL table.

    Attributes:
        dsn: the server's connection string.
        table: the table name, not quoted.
    """

    title = "PostgreSQL"

    dsn: str
    table: str

    def create(self) -> None:
        """See :class:`Output`."""
        self._execute("CREATE TABLE {} (number bigint NOT NULL, key text)")

    def sink(self) -> PostgresSink:
        """See :class:`Output`."""
        return PostgresSink(name="demo-postgres", dsn=self.dsn, table=f'"{self.table}"')

    def append(self, batch: DataFrame) -> None:
        """See :class:`Output`."""
        found = conninfo_to_dict(self.dsn)
        options = {
            "url": "jdbc:postgresql://{host}:{port}/{dbname}".format(**found),
            "user": str(found["user"]),
            "password": str(found["password"]),
            "driver": "org.postgresql.Driver",
            "dbtable": f'"{self.table}"',
        }
        batch.selectExpr(*self.columns).write.format("jdbc").options(**options).mode("append").save()

    def rows(self) -> list[tuple[Any, ...]]:
        """See :class:`TableOutput`."""
        return self._execute("SELECT number, key FROM {}")

    def written(self) -> int:
        """See :class:`Output`."""
        return int(self._execute("SELECT count(*) FROM {}")[0][0])

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(self.dsn) as connection:
                done = connection.execute(sql.SQL(statement).format(sql.Identifier(self.table)))
                return done.fetchall() if done.description else []
        except psycopg.Error as error:
            raise ServiceError(f"PostgreSQL: {error}") from error
