"""Parse ``bootstrap_servers`` for librdkafka and kafka-python, which accept different formats."""

from __future__ import annotations

from typing import Final

from twopc.errors import ConfigurationError

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PORTS: Final = range(1, 65_536)


def servers_of(text: str, protocol: str) -> tuple[str, ...]:
    """Split a comma-separated list into distinct servers, each without a leading listener name (``SSL://host:port``).

    Java clients ignore the listener name. librdkafka reads the name as a protocol, and does not connect if the name differs
    from ``protocol``. This function therefore rejects such a name.

    Raises:
        ConfigurationError: the list is empty, or an entry is not a server.
    """
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        listener, _, server = entry.rpartition("://")
        if listener.upper() in _PROTOCOLS and listener.upper() != protocol.upper():
            raise ConfigurationError(
                f"KafkaSink(bootstrap_servers={text!r}): {entry!r} is for {listener.upper()}, but kafka.security.protocol is "
                f"{protocol.upper()}. Correct the option or the server's address"
            )
        if not _is_server(server):
            raise ConfigurationError(
                f"KafkaSink(bootstrap_servers={text!r}): {entry!r} is not host:port. An IPv6 address needs brackets: [::1]:9092"
            )
        found.append(server)
    if not found:
        raise ConfigurationError(
            f"KafkaSink(bootstrap_servers={text!r}) does not name a broker. Set at least one host:port"
        )
    return tuple(dict.fromkeys(found))


def _is_server(server: str) -> bool:
    """Return whether the text is ``host``, ``host:port``, ``[IPv6]``, ``[IPv6]:port``, or a plain IPv6 address."""
    if server.startswith("["):
        host, bracket, rest = server[1:].partition("]")
        return bool(host and bracket) and (not rest or (rest.startswith(":") and _is_port(rest[1:])))
    host, colon, port = server.partition(":")
    if ":" in port:  # an IPv6 address without brackets, and so without a port
        return "]" not in server
    return bool(host) and "]" not in server and (not colon or _is_port(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) in _PORTS
