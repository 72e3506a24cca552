"""Read facts about the server, and check that the sink can use it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twopc.errors import ConfigurationError
from twopc.sinks.postgres.statements import find_asynchronous_standby, find_publications, read_facts

if TYPE_CHECKING:
    import psycopg

    from twopc.sinks.postgres.settings import PostgresSettings

logger = logging.getLogger(__name__)

#: ``server_version_num`` of the oldest supported version.
_OLDEST: Final = 150_000


class Server(NamedTuple):
    """Facts about a server, in the order of :func:`read_facts`.

    Attributes:
        is_standby: whether the server is a standby, which accepts no writes.
        version: the ``server_version_num``.
        slots: how many prepared transactions the server allows at a time.
    """

    is_standby: bool
    version: int
    slots: int


def read_server(connection: psycopg.Connection[Any]) -> Server:
    """Read the facts about a connection's server."""
    [facts] = connection.execute(read_facts()).fetchall()
    return Server(*facts)


def require_usable(server: Server, settings: PostgresSettings) -> None:
    """Check that a sink with these settings can write to the server.

    Raises:
        ConfigurationError: the sink cannot write. The message says why and what to do.
    """
    if server.is_standby:
        raise ConfigurationError(f"sink {settings.name!r}: the dsn points to a standby. Pass the primary's dsn")
    if server.version < _OLDEST:
        raise ConfigurationError(
            f"sink {settings.name!r}: PostgreSQL {server.version // 10_000} is too old. Nothing was written. Use PostgreSQL "
            "15 or newer"
        )
    if settings.vote == "prepared" and not server.slots:
        raise ConfigurationError(
            f"sink {settings.name!r}: vote='prepared' needs a prepared transaction, but the server allows none "
            "(max_prepared_transactions is 0). Nothing was written. Run ALTER SYSTEM SET max_prepared_transactions = "
            "10 (at least one for each sink with this vote), and restart the server"
        )


def warn_of_asynchronous_standby(connection: psycopg.Connection[Any], settings: PostgresSettings) -> None:
    """Log a warning if a failover may lose committed rows."""
    [(is_asynchronous,)] = connection.execute(find_asynchronous_standby()).fetchall()
    if is_asynchronous:
        logger.warning(
            "sink %r: the server replicates asynchronously to a standby, because synchronous_standby_names is empty. A failover "
            "to the standby may lose committed rows. Set synchronous_standby_names, unless the standby never becomes the primary",
            settings.name,
        )


def warn_of_publications(connection: psycopg.Connection[Any], settings: PostgresSettings) -> None:
    """Log a warning if the sink's own tables are published. Subscribers then receive rows that are not decided yet."""
    if names := [name for (name,) in connection.execute(find_publications(settings.schema))]:
        logger.warning(
            "sink %r: the publication %s also publishes the sink's own tables in the schema %r. Subscribers without these "
            "tables stop with an error. Other subscribers receive rows of undecided batches. The sink's rows in %s are not "
            "affected. Publish only the tables that subscribers need, with FOR TABLE or with FOR TABLES IN SCHEMA",
            settings.name,
            ", ".join(names),
            settings.schema,
            settings.table,
        )
