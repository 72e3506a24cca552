"""Show a URI without its secrets, and check a URL before an HTTP client gets it.

A URI may contain a password, a key or a private path, and clients quote the URLs that they cannot use.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

_HIDDEN: Final = "…"
#: In a local path, which may also begin with ``file:``, no part is secret, and ``?`` is part of a name.
_URI: Final = re.compile(r"(?!file:)([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL | re.IGNORECASE)
_OPTIONS: Final = re.compile(r"[?#].*", re.DOTALL)
#: The password follows the first ``:``, which must come before the path. The user may contain an ``@``. Digits before a slash
#: are a port, so an ``@`` after them is part of the path.
_PASSWORD: Final = re.compile(r"(?!\[|[^:]*@\[)([^:/]*):(?!\d+/)(.*)@", re.DOTALL)
_AUTHORITY: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
#: In these URIs, the user is the name of a container, which is part of the path.
_WITH_CONTAINERS: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_URL: Final = re.compile(r"https?://[!-~]+", re.IGNORECASE)
_HTTP: Final = "http"


class _Parts(NamedTuple):
    scheme: str
    user: str
    password: str
    rest: str  # the host and the path


def shown(uri: str) -> str:
    """Return a URI without its user, password, options and fragment. Any other text, such as a local path, stays unchanged."""
    parts = _parts(uri)
    if parts is None:
        return uri
    is_container = parts.scheme.lower() in _WITH_CONTAINERS and parts.user
    user = parts.user if is_container else _HIDDEN if parts.user or parts.password else ""
    return f"{parts.scheme}://{f'{user}@' if user else ''}{parts.rest}"


def has_secrets(uri: str) -> bool:
    """Return whether a URI contains a part that :func:`shown` hides."""
    return shown(uri) != uri


def passwords_in(uri: str) -> Iterator[str]:
    """Yield the password in a URI, escaped and unescaped."""
    parts = _parts(uri)
    if parts is not None and parts.password:
        yield from {parts.password, unquote(parts.password)}


def is_sendable(url: str) -> bool:
    """Return whether a text is an http or https URL that an HTTP client accepts, without a user or a password in it."""
    if not _URL.fullmatch(url):
        return False
    try:
        found = urlsplit(url)
        return bool(found.hostname) and "@" not in found.netloc and found.port != 0
    except ValueError:  # the port is not a number, or the brackets of an IPv6 address do not match
        return False


def is_readable(url: str) -> bool:
    """Return whether others on the network can read what is sent to this URL: it is not encrypted, and leaves this host."""
    found = urlsplit(url)
    host = (found.hostname or "").lower()
    if found.scheme != _HTTP or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return True


def _parts(uri: str) -> _Parts | None:
    """Split a URI. A password may contain unescaped characters, so it ends only at the last ``@``."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    scheme, after = found.groups()
    rest = _OPTIONS.sub("", after)
    if secret := _PASSWORD.match(rest):
        return _Parts(scheme, secret[1], secret[2], rest[secret.end() :])
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    if not _AUTHORITY.fullmatch(host):  # the text after the colon is not a port, so it may be part of a password
        user, _, password = after.partition(":")
        return _Parts(scheme, user, password, "")
    return _Parts(scheme, user, "", f"{host}{slash}{path}")
