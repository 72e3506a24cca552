"""Check a PostgreSQL sink's arguments. :class:`twopc.sinks.postgres.PostgresSink` documents them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

import psycopg

from twopc.errors import ConfigurationError
from twopc.sinks.arguments import Arguments
from twopc.sinks.fresh import fresh
from twopc.sinks.postgres.database import Database
from twopc.sinks.postgres.errors import explained
from twopc.sinks.postgres.objections import find_objections
from twopc.sinks.postgres.options import Address
from twopc.sinks.postgres.publishing import Mode, Publishing, Vote
from twopc.sinks.postgres.rows import fit_rows
from twopc.sinks.postgres.table import read_table

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.sinks.postgres.rows import RowFormat
    from twopc.sinks.postgres.target import Table


@dataclass(frozen=True, kw_only=True)
class PostgresSettings(Arguments):
    """The settings that a writer and a committer need; see :class:`Arguments`."""

    dsn: str = field(repr=False)  # may contain a password
    table: str
    mode: Mode = "append"
    key: tuple[str, ...] | str = ()
    order_by: tuple[str, ...] | str = ()
    vote: Vote = "staged"
    schema: str = "twopc"
    timeout_ms: int = 60_000

    def __post_init__(self) -> None:
        for argument in ("key", "order_by"):
            object.__setattr__(self, argument, _names(getattr(self, argument)))
        super().__post_init__()
        self._require(self.mode in get_args(Mode), "mode", "pass 'append' or 'upsert'")
        self._require(
            bool(self.key) == (self.mode == "upsert"),
            "key",
            "with mode='upsert', pass the columns of a unique index. With mode='append', pass no key",
        )
        self._require(not self.order_by or self.key, "order_by", "pass order_by only with mode='upsert'")
        self._require(self.vote in get_args(Vote), "vote", "pass 'staged' or 'prepared'")
        self._require(self.schema, "schema", "pass a name")
        Address(self.dsn)

    def database(self) -> Database:
        """Create a connection that opens on first use. The caller must close the connection."""
        return Database(Address(self.dsn), self.name, timeout_ms=self.timeout_ms)

    def publishing(self, table: Table, columns: tuple[str, ...]) -> Publishing:
        """Describe how to publish rows with these columns.

        Raises:
            ConfigurationError: the table may reject the rows after the decision. The message says why and what to do.
        """
        publishing = Publishing(table, self.mode, columns, _names(self.key), _names(self.order_by), self.vote)
        for objection in find_objections(publishing):
            raise ConfigurationError(f"sink {self.name!r}: {objection}. Nothing was written")
        return publishing


@fresh
def row_format(settings: PostgresSettings, schema: pa.Schema) -> RowFormat:
    """Determine how to write a batch's rows. Read the table at most once every 30 s for this purpose.

    For other purposes, tasks and the driver read the table in each batch.

    Raises:
        SchemaError: the columns do not fit the table.
        ConfigurationError: the table may reject rows after the decision, or cannot be read.
    """
    database = settings.database()
    try:
        with database.transaction() as connection:
            table = read_table(connection, settings.table, locked=False)
    except psycopg.Error as error:
        raise explained(error, f"sink {settings.name!r}, reading table {settings.table}") from error
    finally:
        database.close()
    found = fit_rows(schema, table, key=settings.key)
    settings.publishing(table, found.names)
    return found


def _names(given: tuple[str, ...] | str) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
