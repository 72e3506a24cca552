"""Check a PostgreSQL sink's connection string, and show it without its password.

libpq's error messages quote text that libpq cannot parse. If a password is not escaped, this text may be part of the password.
So this module catches such mistakes first, and shows no values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from twopc.errors import ConfigurationError
from twopc.redaction import REMEDY, Redaction, flaw
from twopc.sinks.postgres.errors import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SCHEMES: Final = ("postgresql://", "postgres://")
_ESCAPES: Final = "In a URL's user name or password, write '/' as %2F, '@' as %40, ':' as %3A, '?' as %3F, '%' as %25"
_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret")
#: Parameters that the sink itself sets, or that would change the meaning of its statements.
_OWNED: Final = {
    "client_encoding": "the sink writes UTF-8",
    "connect_timeout": "timeout_ms determines the timeouts",
    "replication": "the sink needs ordinary connections",
    "fallback_application_name": "the application name contains the sink name",
}
_PORTS: Final = range(1, 65_536)
_LEAST_TIMEOUT_S: Final = 2


@dataclass(frozen=True)
class Address:
    """The database's address, and the user who connects.

    Args:
        dsn: a URL or ``name=value`` pairs, in libpq format.

    Raises:
        ConfigurationError: the dsn is invalid. The message shows no values from the dsn.
    """

    dsn: str = field(repr=False)  # may contain a password

    def __post_init__(self) -> None:
        found = self._parameters()
        for objection in _objections(self.dsn, found):
            raise _wrong(objection)

    def __str__(self) -> str:
        """Return ``user@host:port/database``, without the parts that the connection string omits."""
        found = self._parameters()
        user, host = (
            found.get("user"),
            found.get("host") or found.get("hostaddr") or found.get("service") or "localhost",
        )
        port, database = found.get("port"), found.get("dbname")
        return "".join(
            (f"{user}@" if user else "", str(host), f":{port}" if port else "", f"/{database}" if database else "")
        )

    def connect(self, name: str, *, timeout_ms: int) -> psycopg.Connection[Any]:
        """Connect to a server that accepts writes. The connection begins a transaction with its first statement.

        Args:
            name: the sink name. The server shows the sink name as the application name (``pg_stat_activity``), unless the
                connection string sets a different application name.
            timeout_ms: how long the connection attempt may take. A value below 2000 counts as 2000.

        Raises:
            psycopg.OperationalError: the attempt failed. The message does not show the password.
        """
        given: Mapping[str, Any] = {"target_session_attrs": "read-write", **self._parameters()}
        try:
            return psycopg.connect(
                **given,
                client_encoding="UTF8",
                connect_timeout=max(timeout_ms // 1000, _LEAST_TIMEOUT_S),
                fallback_application_name=f"twopc/{name}",
                # A connection pool between client and server may use a different server session for each transaction.
                prepare_threshold=None,
            )
        except psycopg.OperationalError as error:
            hidden = type(error)(self.hide(str(error)))
            hidden.sqlstate = state_of(error)  # a password may be one of the words that show the state
            raise hidden from None

    def hide(self, message: str) -> str:
        """Mask the connection string's secrets in a message, even if they are escaped."""
        found = self._parameters()
        return Redaction(str(found[name]) for name in _SECRETS if found.get(name))(message)

    def _parameters(self) -> Mapping[str, Any]:
        try:
            return conninfo_to_dict(self.dsn)
        except (psycopg.Error, UnicodeError):
            # The client's message quotes the text that it cannot parse.
            raise _wrong(f"the dsn is neither a URL nor name=value pairs in libpq format. {_ESCAPES}") from None


def _objections(dsn: str, found: Mapping[str, Any]) -> Iterator[str]:
    for name, reason in _OWNED.items():
        if name in found:
            yield f"the sink itself sets {name!r}: {reason}. Remove it from the dsn"
    is_url = dsn.startswith(_SCHEMES)
    ports = str(found.get("port", "")).split(",")
    if not all(port == "" or (port.isdecimal() and int(port) in _PORTS) for port in ports):
        yield f"the port is not a number up to {_PORTS.stop - 1}. {_ESCAPES}"
    if is_url and any("@" in str(found.get(name, "")) for name in ("host", "dbname")):
        yield f"the host or database contains an '@'. {_ESCAPES}"
    if "\0" in dsn:
        yield "the dsn contains a NUL character, and libpq would ignore everything after this character"
    for name in sorted(found.keys() - set(_SECRETS)):
        if problem := flaw(str(found[name]).strip(" ")):  # a name may begin or end with a space
            yield f"the value of {name!r} {problem}. {REMEDY}"


def _wrong(advice: str) -> ConfigurationError:
    return ConfigurationError(f"PostgresSink(dsn=…): {advice}")
