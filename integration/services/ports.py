"""Find free TCP ports on 127.0.0.1 for local servers."""

from __future__ import annotations

import random
import socket

from twopc.integration.services import ServiceError

HOST = "127.0.0.1"

# These ports are below Linux's range for outgoing connections (32768 and up). Between a server's kill() and its
# restart(), any client could take a port in that range, even a client that tries to reach that server.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports on 127.0.0.1 that are not in use, below the range for outgoing connections.

    Raises:
        ServiceError: too few of the tried ports are free.
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
    raise ServiceError(
        f"There are fewer than {count} free TCP ports from {_PORTS.start} to {_PORTS.stop} on {HOST}. Stop leftover servers."
    )
