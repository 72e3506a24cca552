"""TCP ports of 127.0.0.1 for servers that this machine starts for itself."""

from __future__ import annotations

import random
import socket

from integration.services.java import ServiceError

HOST = "127.0.0.1"

# Below Linux's range for outgoing connections (32768 and up): a port in that range could be taken by any client
# between a server's kill() and its restart(), even by one that is trying to reach the server on it.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports nobody listens on at 127.0.0.1, outside the range of outgoing connections.

    Raises:
        ServiceError: no free port was found in many tries.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, 1000):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServiceError(f"no {count} free TCP ports between {_PORTS.start} and {_PORTS.stop} on {HOST}")
