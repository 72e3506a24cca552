"""Check the properties of a catalog. No message shows a value, because the value may contain a secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from twopc.redaction import flaw_of_header, flaws_in, is_header_name
from twopc.uris import is_readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: With these URIs, each process would have its own catalog.
_OF_ONE_PROCESS: Final = re.compile(r"sqlite(\+\w+)?://(/:memory:|/?$|/?\?|.*mode=memory)")
_HEADER: Final = "header."
#: The properties with which pyiceberg logs in to a REST catalog.
_LOGINS: Final = frozenset({"token", "credential", "auth"})
#: A URL, as SQLAlchemy reads it. The user may contain an ``@`` (Azure needs one). The password ends at the first ``@`` after
#: the user, and the port ends at the next ``/`` or ``?``.
_SQL: Final = re.compile(r"[\w+]+://([^:/]*(:[^@]*)?@)?(\[[^\]]*\]|[^:/?@]*)(:\d*)?([/?].*)?")
_ESCAPES: Final = "In a user name or password, write '/' as %2F, '@' as %40, ':' as %3A, '?' as %3F, '%' as %25"


def objections(catalog: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a catalog's properties, and what to pass instead."""
    uri = str(catalog.get("uri", ""))
    if catalog.get("type") == "in-memory" or _OF_ONE_PROCESS.match(uri):
        yield "an in-memory catalog exists in only one process. Pass a catalog that the driver and all executors can reach"
    yield from flaws_in(catalog)
    for name, value in catalog.items():
        if name.startswith(_HEADER) and not is_header_name(name.removeprefix(_HEADER)):
            yield f"in the name of a property, '{_HEADER}' may be followed only by letters, digits and '-'"
        if (name.startswith(_HEADER) or name == "token") and (problem := flaw_of_header(str(value))):
            yield f"the value of {name!r} {problem}"
    if not _is_readable_by_its_client(uri, str(catalog.get("type", "")).lower()):
        yield f"the host or the port in 'uri' is not valid. {_ESCAPES}"


def logs_in_readably(catalog: Mapping[str, Any]) -> bool:
    """Return whether others on the network can read the token or the credential that the catalog's client sends."""
    uris = (str(catalog.get(name, "")) for name in ("uri", "oauth2-server-uri"))
    return bool(_LOGINS & catalog.keys()) and any(map(is_readable, uris))


def without_sql_login(catalog: Mapping[str, Any]) -> str:
    """Return a catalog's URI. If it is an SQL URI, omit the user and the password, which may contain ``/``, ``?`` and ``#``."""
    uri = str(catalog.get("uri", ""))
    found = _SQL.fullmatch(uri) if _is_sql(uri, str(catalog.get("type", "")).lower()) else None
    return f"{uri[: found.start(1)]}{uri[found.end(1) :]}" if found and found[1] else uri


def _is_sql(uri: str, kind: str) -> bool:
    return kind == "sql" or uri.startswith(("sqlite", "postgresql"))


def _is_readable_by_its_client(uri: str, kind: str) -> bool:
    """Return whether the client can parse the host and the port. If it cannot, its error may quote a part of the password."""
    if _is_sql(uri, kind):
        return "://" not in uri or _SQL.fullmatch(uri) is not None
    try:
        return urlsplit(uri).port != 0 if uri.lower().startswith("http") else True
    except ValueError:
        return False
