"""Read the broker's own counts over JMX: requests by kind, bytes on the wire, connections. They include all clients."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from twopc.integration.services.ivy import pyspark_jars
from twopc.integration.services.java import java_command
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.services.ports import HOST, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

_REQUESTS: Final = "kafka.network:type=RequestMetrics,name=RequestsPerSec,*"
_SOCKETS: Final = "kafka.server:type=socket-server-metrics,listener=PLAINTEXT,networkProcessor=*"
#: Requests that do not count: requests between the broker and the controller, which are one process, and parts of other requests.
_NOT_OF_CLIENTS: Final = {
    "BrokerHeartbeat",
    "BrokerRegistration",
    "ControllerRegistration",
    "FetchConsumer",
    "FetchFollower",
}
_REMOTE: Final = "-Dcom.sun.management.jmxremote"


@dataclass(frozen=True)
class Counts:
    """The counts that a broker reports, in total or between two readings.

    Attributes:
        requests: the number of requests of each kind.
        wire_bytes: the number of bytes received and sent.
        connections: the number of open connections.
    """

    requests: dict[str, int]
    wire_bytes: float
    connections: int

    def since(self, before: Counts) -> Counts:
        """Return the counts since another reading. The number of connections is from this reading."""
        requests = {kind: count - before.requests.get(kind, 0) for kind, count in self.requests.items()}
        return Counts(
            {kind: count for kind, count in requests.items() if count},
            self.wire_bytes - before.wire_bytes,
            self.connections,
        )

    @property
    def all_requests(self) -> int:
        """The number of requests over all kinds."""
        return sum(self.requests.values())


class Broker:
    """A local broker whose own counts can be read."""

    def __init__(self, kafka: LocalKafka, jvm: Any, connection: Any) -> None:
        self.kafka = kafka
        self.bootstrap_servers = kafka.bootstrap_servers
        self._jvm = jvm
        self._connection = connection

    def read(self) -> Counts:
        """Return the broker's counts since it started."""
        requests: dict[str, int] = {}
        for name in self._named(_REQUESTS):
            kind = str(name.getKeyProperty("request"))
            if kind in _NOT_OF_CLIENTS:
                continue
            requests[kind] = requests.get(kind, 0) + int(self._connection.getAttribute(name, "Count"))
        sockets = list(self._named(_SOCKETS))
        moved = sum(self._number(name, f"{way}-byte-total") for name in sockets for way in ("incoming", "outgoing"))
        return Counts(requests, moved, int(sum(self._number(name, "connection-count") for name in sockets)))

    def resources(self) -> dict[str, float]:
        """Collect garbage, so that the heap contains only live objects, and return the broker process's resources by name."""
        memory = self._jvm.javax.management.ObjectName("java.lang:type=Memory")
        self._connection.invoke(memory, "gc", None, None)
        system = self._jvm.javax.management.ObjectName("java.lang:type=OperatingSystem")
        process = psutil.Process(self.kafka.pid)
        return {
            "broker heap, MiB": int(self._connection.getAttribute(memory, "HeapMemoryUsage").get("used")) / 2**20,
            "broker resident memory, MiB": process.memory_info().rss / 2**20,
            "broker memory maps": float(len(process.memory_maps(grouped=False))),
            "broker open files": self._number(system, "OpenFileDescriptorCount"),
        }

    def disk_mib(self, prefix: str) -> float:
        """Return the disk space of all topics whose names begin with the prefix, including indexes and checkpoints, in MiB."""
        logs = self.kafka.data_dir / "logs"
        files = (file for part in logs.glob(f"{prefix}*-[0-9]*") for file in part.iterdir())
        return sum(512 * file.stat().st_blocks for file in files) / 2**20

    def disk_bytes(self, *topics: str) -> int:
        """Return the number of bytes in these topics' logs, without their indexes."""
        logs = self.kafka.data_dir / "logs"
        return sum(
            file.stat().st_size
            for topic in topics
            for part in logs.glob(f"{topic}-[0-9]*")
            for file in part.glob("*.log")
        )

    def _named(self, pattern: str) -> Iterator[Any]:
        yield from self._connection.queryNames(self._jvm.javax.management.ObjectName(pattern), None)

    def _number(self, name: Any, attribute: str) -> float:
        return float(self._connection.getAttribute(name, attribute))


@contextlib.contextmanager
def counting_broker(heap: str = "1g") -> Iterator[Broker]:
    """Yield a broker that runs until the body ends."""
    (port,) = free_ports(1)
    flags = [f"{_REMOTE}.{name}={value}" for name, value in (("port", port), ("rmi.port", port), ("host", HOST))]
    flags += [f"{_REMOTE}.authenticate=false", f"{_REMOTE}.ssl=false", f"-Djava.rmi.server.hostname={HOST}"]
    with LocalKafka(heap=heap, jvm_flags=tuple(flags)) as kafka, _small_jvm() as jvm:
        remote = jvm.javax.management.remote
        url = remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi")
        connector = remote.JMXConnectorFactory.connect(url)
        try:
            yield Broker(kafka, jvm, connector.getMBeanServerConnection())
        finally:
            connector.close()


@contextlib.contextmanager
def _small_jvm() -> Iterator[Any]:
    """Yield a JVM through which this process uses JMX."""
    jar = next(iter(pyspark_jars().glob("py4j-*.jar")))
    options = ["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    port = launch_gateway(
        jarpath=str(jar), classpath=str(jar), javaopts=options, die_on_exit=True, java_path=str(java_command())
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
