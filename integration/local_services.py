"""A real Kafka broker on this machine without Docker: `with LocalKafka() as kafka: ... kafka.bootstrap_servers`.

One KRaft node of the jars that `integration.jars` fetches, in its own process, on free ports of 127.0.0.1.
"""

from __future__ import annotations

import atexit
import base64
import random
import shutil
import signal
import socket
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from integration.guard import GuardedProcess
from integration.jars import DEFAULT_KAFKA_VERSION, kafka_jars
from integration.java import ServiceError, java_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["LocalKafka", "ServiceError", "free_ports", "new_cluster_id"]

HOST = "127.0.0.1"
_NODE_ID = 1
_CONTROLLER = "CONTROLLER"
_PLAINTEXT = "PLAINTEXT"

# A start (format included) took 3.2 s with these and 3.9 s without, three runs each on 2 cores.
FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""JVM flags for a broker of a test; pass `jvm_flags=()` where throughput is measured."""

ONE_NODE_PROPERTIES: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # One node: internal topics cannot have the three replicas that Kafka wants by default.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # After kill -9 the controller waits for the end of the dead broker's session: restart in 4 s instead of 11 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}

_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_PORT_ATTEMPTS = 4
_FORMAT_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_METADATA_TIMEOUT_S = 0.5
_LOG_TAIL_LINES = 25
# Below Linux's range for outgoing connections (32768 and up): a port in that range could be taken by any client
# between kill() and restart(), even by one that is trying to reach the broker on it.
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


def new_cluster_id() -> str:
    """Return a base64 UUID as Kafka wants it."""
    # "A" first: an identifier that begins with "-" would be read as an option.
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


class LocalKafka:
    """A single broker that is also its controller, owned by this process: it ends when its owner ends, even by kill -9.

    Attributes:
        version: Kafka version of the broker.
        data_dir: everything the broker writes; `broker.log` in it is the log of the format step and every run.
        properties: all broker properties but the addresses; changes apply at the next start.
    """

    def __init__(  # noqa: PLR0913 - keyword-only settings, each with a default
        self,
        *,
        version: str = DEFAULT_KAFKA_VERSION,
        data_dir: Path | None = None,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
        heap: str = "512m",
        jvm_flags: tuple[str, ...] = FAST_START,
        start_timeout_s: float = 90,
    ) -> None:
        """Describe a broker; nothing is started yet.

        Args:
            version: a Kafka version from 3.3 on that the registry has.
            data_dir: kept directory, may hold data of an earlier run; by default a temporary one, removed by `close`.
            properties: broker properties that override or add to the defaults, `listeners` included.
            listeners: more listeners beside PLAINTEXT, name -> security protocol, such as {"SASL": "SASL_PLAINTEXT"};
                each gets a port, see `address`. What the protocol needs goes into `properties`.
            cluster_id: what a new data directory is formatted with, a base64 UUID; by default a new one.
            heap: maximal Java heap (`-Xmx`).
            jvm_flags: further flags of the JVM.
            start_timeout_s: how long one start may take, in seconds.
        """
        self.version = version
        self.properties = {**ONE_NODE_PROPERTIES, **(properties or {})}
        self._is_temporary = data_dir is None
        self.data_dir = data_dir.absolute() if data_dir else Path(tempfile.mkdtemp(prefix="twopc-kafka-"))
        self._listeners = {_PLAINTEXT: _PLAINTEXT, **(listeners or {}), _CONTROLLER: _PLAINTEXT}
        self._ports: dict[str, int] = {}
        self._cluster_id = cluster_id or new_cluster_id()
        self._jvm_arguments = (f"-Xmx{heap}", *jvm_flags)
        self._start_timeout_s = start_timeout_s
        self._process: GuardedProcess | None = None
        self._has_served = False

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the PLAINTEXT listener."""
        return self.address(_PLAINTEXT)

    @property
    def log_path(self) -> Path:
        """The log of the format step and of every run, appended to."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM.

        Raises:
            ServiceError: it is not running.
        """
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there (it may be paused)."""
        return self._process is not None and self._process.exit_code is None

    def address(self, listener: str) -> str:
        """Return `host:port` of a listener by its name, the same over restarts.

        Raises:
            ServiceError: no such listener, or the broker was never started (ports are chosen at the first start).
        """
        for entry in self._effective_properties().get("listeners", "").split(","):
            name, _, address = entry.strip().partition("://")
            if name == listener:
                return address
        raise ServiceError(f"Kafka has no address for listener {listener!r} (is it started?)")

    def start(self) -> None:
        """Format the data directory when it is new, start the broker, and return when it answers for all its topics.

        Raises:
            ServiceError: it ended or was not ready in time; quotes the end of its log.
        """
        if self.is_running:
            raise ServiceError(f"Kafka is already running (process {self.pid})")
        jars = kafka_jars(self.version)
        logging = f"-Dlog4j.configuration=file:{self.data_dir}/log4j.properties"
        command = [str(java_command()), *self._jvm_arguments, logging, "-cp", ":".join(map(str, jars))]
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "log4j.properties").write_text(_LOG4J)
        atexit.register(self.close)
        for attempt in range(_PORT_ATTEMPTS):
            if not self._has_served:
                self._ports = dict(zip(self._listeners, free_ports(len(self._listeners)), strict=True))
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            try:
                self._launch(command)
            except ServiceError as error:
                if self._process:
                    self._process.kill()
                log = self._log_since(log_start)
                # Between the look for a free port and its use somebody else may have taken it.
                is_taken = "Address already in use" in log and not self._has_served
                if is_taken and attempt + 1 < _PORT_ATTEMPTS:
                    continue
                raise ServiceError(f"Kafka {self.version}: {error}. End of {self.log_path}:\n{_tail(log)}") from error
            self._has_served = True
            return

    def stop(self) -> None:
        """End the broker as an operator would (SIGTERM) and wait for its end; it need not be running."""
        if self._process:
            self._process.terminate(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL) and wait for its end; it need not be running."""
        if self._process:
            self._process.kill()

    def restart(self) -> None:
        """Start again on the same data and ports, after `stop()` if it is still running.

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
        """End the broker and remove its data directory if it is a temporary one."""
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
            raise ServiceError("Kafka is not running")
        return self._process

    def _effective_properties(self) -> dict[str, str]:
        """Return what goes into server.properties; the caller's properties win, addresses included."""
        addresses: dict[str, str] = {}
        if self._ports:
            addresses = {
                "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in self._ports.items()),
                "controller.quorum.voters": f"{_NODE_ID}@{HOST}:{self._ports[_CONTROLLER]}",
            }
        return {
            "process.roles": "broker,controller",
            "node.id": str(_NODE_ID),
            "controller.listener.names": _CONTROLLER,
            "listener.security.protocol.map": ",".join(f"{n}:{protocol}" for n, protocol in self._listeners.items()),
            "log.dirs": str(self.data_dir / "logs"),
            **addresses,
            **self.properties,
        }

    def _launch(self, command: list[str]) -> None:
        """Format if needed, start one process and wait until it serves."""
        self._process = None
        config = self.data_dir / "server.properties"
        config.write_text("".join(f"{k}={_escaped(v)}\n" for k, v in self._effective_properties().items()))
        meta = self.data_dir / "logs" / "meta.properties"
        try:
            if not meta.exists():
                tool = ["kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(config)]
                self._format([*command, *tool])
            self._process = GuardedProcess([*command, "kafka.Kafka", str(config)], log=self.log_path, cwd=self.data_dir)
        except OSError as error:
            raise ServiceError(str(error)) from error
        cluster_id = next(line[11:] for line in meta.read_text().splitlines() if line.startswith("cluster.id="))
        self._wait_until_ready(self._process, cluster_id)

    def _format(self, command: list[str]) -> None:
        formatter = GuardedProcess(command, log=self.log_path, cwd=self.data_dir)
        code = formatter.wait(_FORMAT_TIMEOUT_S)
        if code != 0:
            formatter.kill()
            raise ServiceError(f"could not format {self.data_dir} (exit code {code})")

    def _wait_until_ready(self, process: GuardedProcess, cluster_id: str) -> None:
        """Ask for metadata until this very cluster answers, with its broker in service and a leader everywhere."""
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # Refused connections are what is expected here.
            }
        )
        node_id = int(self._effective_properties()["node.id"])
        deadline = time.monotonic() + self._start_timeout_s
        while process.exit_code is None:
            if time.monotonic() > deadline:
                raise ServiceError(f"not ready after {self._start_timeout_s:g} s")
            try:
                metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_S)
            except KafkaException:
                continue
            leaders = [part.leader for topic in metadata.topics.values() for part in topic.partitions.values()]
            if metadata.cluster_id == cluster_id and node_id in metadata.brokers and all(n >= 0 for n in leaders):
                return
        raise ServiceError(f"ended at start with exit code {process.exit_code}")

    def _log_since(self, offset: int) -> str:
        with self.log_path.open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")


def _tail(log: str) -> str:
    """Return what a log ends with: from its first error on, since an orderly shutdown may follow; else the last lines.

    Frames of stack traces and the dump of all settings are left out.
    """
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("\t")]
    errors = [i for i, line in enumerate(lines) if "Exception" in line or "] ERROR" in line or "] FATAL" in line]
    chosen = lines[errors[0] :][:_LOG_TAIL_LINES] if errors else lines[-_LOG_TAIL_LINES:]
    return "\n".join(chosen) or "(empty)"


def _escaped(value: str) -> str:
    """Return a value as a Java properties file wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n\\\n")
