"""Check the redis-py options in a sink's ``options`` and in the query string of its url.

redis-py itself does not report all mistakes. It lets a url override all options, and reads ``/prod`` as database 0. It passes
unknown options to a constructor that rejects them, but its cluster client silently drops unknown options.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from redis.cluster import REDIS_ALLOWED_KEYS, RedisCluster
from redis.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import RedisError

from twopc.errors import ConfigurationError
from twopc.redaction import REMEDY, flaw

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CONNECTIONS: Final = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}
_RETRIES: Final = "a redis-py retry could apply a command twice"
_ANSWERS: Final = "the sink reads and writes bytes"
#: Options that the sink itself sets, or that would change the meaning of commands and responses.
_OWNED: Final = {
    **dict.fromkeys(("retry", "retry_on_timeout", "retry_on_error", "cluster_error_retry_attempts"), _RETRIES),
    **dict.fromkeys(("decode_responses", "encoding", "encoding_errors", "parser_class", "command_packer"), _ANSWERS),
    **dict.fromkeys(("read_from_replicas", "load_balancing_strategy"), "only the primary knows which rows were applied"),
    **dict.fromkeys(
        ("connection_pool", "connection_pool_class", "connection_class", "queue_class", "single_connection_client",
         "redis_connect_func", "cache", "cache_config", "cache_factory"),
        "the sink creates its own connections",
    ),
    **dict.fromkeys(("host", "port", "path", "unix_socket_path", "url"), "the url contains the address"),
    "socket_timeout": "timeout_ms determines the timeouts",
    "ssl": "to use TLS, begin the url with rediss://",
}  # fmt: skip
#: Options with text values. A url may contain other options only if redis-py has a parser for them.
_TEXTS: Final = frozenset(
    {
        "username", "password", "client_name", "lib_name", "lib_version", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs",
        "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_password", "ssl_ciphers",
    }
)  # fmt: skip
#: The cluster client's options, without its connections' options.
_OF_CLUSTER: Final = frozenset(inspect.signature(RedisCluster.__init__).parameters) - {"self", "kwargs"}
#: Parameters in the signatures that are not for users.
_PRIVATE: Final = frozenset({"self", "args", "kwargs", "connection_kwargs"})
_ESCAPES: Final = "In a user name or password, write '/' as %2F, '#' as %23, '?' as %3F, '@' as %40, ':' as %3A"


def require_valid(url: str, options: Mapping[str, Any], *, cluster: bool) -> None:
    """Check a sink's url and options. No message shows a value, because the value may contain part of a password.

    Raises:
        ConfigurationError: an option is invalid. The message identifies the argument and the option, and says what to pass
            instead.
    """
    if problem := flaw(url):
        raise _wrong("url", f"the url {problem}. {REMEDY}")
    scheme = urlsplit(url).scheme
    if scheme not in _CONNECTIONS:
        raise _wrong("url", "the url must start with redis://, rediss:// (TLS) or unix://")
    if scheme == "unix" and cluster:
        raise _wrong("url", "a cluster has no socket file: the url must start with redis:// or rediss://")
    in_url = _options_of(url)
    for argument, given in (("url", in_url), ("options", options)):
        _require_allowed(argument, given, scheme, cluster=cluster)
    for name in sorted(in_url.keys() & options):
        raise _wrong("options", f"{name!r} is also in the url: pass it only once")
    for argument, has_database in (("url", in_url.get("db", "0").strip("0")), ("options", "db" in options)):
        if cluster and has_database:
            raise _wrong(argument, "a cluster has only database 0: remove the database number")
    _require_constructible(url, {name: value for name, value in options.items() if name not in _OF_CLUSTER})


def require_valid_for_sentinels(options: Mapping[str, Any]) -> None:
    """Check the options for connections to Sentinels. A Sentinel's address has no scheme, so ``ssl`` turns on TLS.

    Raises:
        ConfigurationError: see :func:`require_valid`.
    """
    _require_allowed("sentinel_options", options.keys() - {"ssl"}, "rediss", cluster=False)


def _require_allowed(argument: str, names: Iterable[str], scheme: str, *, cluster: bool) -> None:
    for name in sorted(names):
        if why := _objection(name, scheme, cluster=cluster, is_text=argument == "url"):
            raise _wrong(argument, f"{name!r} {why}")


def _wrong(argument: str, advice: str) -> ConfigurationError:
    return ConfigurationError(f"RedisSink({argument}=…): {advice}")


def _options_of(url: str) -> dict[str, str]:
    """Return a url's options as text, from the query string and from the url's other parts."""
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 - the library checks the port when this attribute is read
    except ValueError:
        # The library's message may show part of a password.
        raise _wrong("url", f"the port is not a number up to 65535. {_ESCAPES}") from None
    if parts.fragment:
        raise _wrong("url", f"nothing can follow a '#'. {_ESCAPES}")
    query = parse_qs(parts.query, keep_blank_values=True)
    database = parts.path.strip("/") if parts.scheme != "unix" else ""
    if database and not database.isdecimal():
        raise _wrong("url", f"the path is not a database number. {_ESCAPES}")
    elsewhere = {"username": parts.username, "password": parts.password, "db": database}
    for name, value in elsewhere.items():
        if value:
            query.setdefault(name, []).append(unquote(value))
    for name, values in query.items():
        if len(values) > 1:
            raise _wrong("url", f"the option {name!r} occurs twice: pass it only once")
        if not values[0]:
            raise _wrong("url", f"{name!r} has no value: set a value, or remove the option")
    return {name: values[0] for name, values in query.items()}


@cache
def _known(scheme: str, *, cluster: bool) -> frozenset[str]:
    """Return the options that redis-py passes to connections or to the connection pool."""
    found = {
        name for kind in (*_CONNECTIONS[scheme].__mro__, ConnectionPool) for name in inspect.signature(kind).parameters
    }
    # A cluster client silently drops every option that it does not know, except these.
    return frozenset((found & set(REDIS_ALLOWED_KEYS)) | _OF_CLUSTER if cluster else found) - _PRIVATE


def _objection(name: str, scheme: str, *, cluster: bool, is_text: bool) -> str:
    """Return the objection to an option's name. Return an empty string if the name is valid."""
    if name in _OWNED:
        return f"is reserved: {_OWNED[name]}. Remove it"
    if name not in _known(scheme, cluster=cluster):
        if name in _known("rediss", cluster=cluster):
            return "requires TLS: begin the url with rediss://"
        return f"is not a redis-py option for {'clusters' if cluster else 'connections'}: correct or remove it"
    if is_text and name not in _TEXTS and name not in URL_QUERY_ARGUMENT_PARSERS:
        return "cannot be written as text: pass it in options"
    return ""


def _require_constructible(url: str, options: Mapping[str, Any]) -> None:
    """Let redis-py parse the values without connecting."""
    try:
        ConnectionPool.from_url(url, **options).make_connection()
    except (TypeError, ValueError, AttributeError, RedisError) as error:
        raise _wrong(
            "url=…, options", f"redis-py rejected a value: {str(error).rstrip('.')}. Correct the value"
        ) from error
