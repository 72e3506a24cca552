"""Run a real Kafka broker without Docker: `with LocalKafka() as kafka: ... kafka.bootstrap_servers`.

One KRaft node runs from the jars of `twopc.integration.services.jars`, in a separate process that listens on free ports
on 127.0.0.1.

The environment variable `TWOPC_KAFKA` sets the broker's version, and the features for a new data directory:
`TWOPC_KAFKA=3.9.1`, or `TWOPC_KAFKA=4.3.0,transaction.version=1`.
"""

from __future__ import annotations

import base64
import functools
import os
import uuid
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from twopc.integration.services import ServiceError, cache_dir
from twopc.integration.services.class_data import archive_in, class_data_flags
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from twopc.integration.services.jars import kafka_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LOG4J, LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["LocalKafka", "ServiceError", "new_cluster_id"]

_CHOICE = "TWOPC_KAFKA"
_NODE_ID = 1
_CONTROLLER = "CONTROLLER"
_PLAINTEXT = "PLAINTEXT"

ONE_NODE_PROPERTIES: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # With one node, internal topics cannot have Kafka's default of three replicas.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # By default, a broker deletes records with old timestamps every 5 min. A local broker must keep them.
    "log.retention.check.interval.ms": "86400000",
    # After kill -9 the controller waits until the dead broker's session expires. With this value, a restart takes 4 s, not 11 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
}

_FORMAT_TIMEOUT_S = 60
_METADATA_TIMEOUT_S = 0.5


def new_cluster_id() -> str:
    """Return a random UUID in base64, as Kafka requires."""
    # The "A" comes first because the format tool would read an id that begins with "-" as an option.
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


class LocalKafka(LocalServer):
    """A single node that is both broker and controller. The node exits when its owner exits, even if kill -9 ends the owner.

    Attributes:
        version: the broker's Kafka version; a change applies at the next start.
        data_dir: the directory for everything that the broker writes. The file `broker.log` in the directory contains the
            output of the format step and the log of all runs.
        properties: all broker properties except addresses; changes apply at the next start.
    """

    _LOG = "broker.log"

    def __init__(  # noqa: PLR0913 - keyword-only settings, each with a default
        self,
        *,
        version: str | None = None,
        features: Sequence[str] = (),
        data_dir: Path | None = None,
        properties: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        cluster_id: str | None = None,
        heap: str = "512m",
        jvm_flags: tuple[str, ...] | None = None,
    ) -> None:
        """Configure a broker, but do not start it yet.

        Args:
            version: a Kafka version, 3.0 or newer; None: the version in `TWOPC_KAFKA`, with its features, or else the
                default version.
            features: the features of a new data directory, such as "transaction.version=1" (Kafka 4.0 or newer).
            data_dir: see `LocalServer`.
            properties: broker properties that override or add to the defaults, `listeners` included.
            listeners: listeners in addition to PLAINTEXT, name -> security protocol, such as {"SASL":
                "SASL_PLAINTEXT"}. Each listener is assigned a port; see `address`. Put the protocol's settings into
                `properties`.
            cluster_id: the id for a new data directory, a base64 UUID; None: a random id.
            heap: maximum Java heap (`-Xmx`).
            jvm_flags: further JVM flags; None: the flags for a fast start. To measure throughput, pass no flags: `()`.
        """
        if version is None:
            version, *chosen = os.environ.get(_CHOICE, DEFAULT_KAFKA_VERSION).split(",")
            features = features or chosen
        self._listeners = {_PLAINTEXT: _PLAINTEXT, **(listeners or {}), _CONTROLLER: _PLAINTEXT}
        super().__init__(f"Kafka {version}", tuple(self._listeners), data_dir)
        self.version = version
        self._features = [word for feature in features for word in ("--feature", feature)]
        self.properties = {**ONE_NODE_PROPERTIES, **(properties or {})}
        self._cluster_id = cluster_id or new_cluster_id()
        self._heap = heap
        self._jvm_flags = jvm_flags

    @property
    def bootstrap_servers(self) -> str:
        """The address of the PLAINTEXT listener, as `host:port`."""
        return self.address(_PLAINTEXT)

    def address(self, listener: str) -> str:
        """Return a listener's address as `host:port`. Restarts do not change the address.

        Raises:
            ServiceError: no listener has this name, or the broker was never started. The broker's first start chooses the
                ports.
        """
        for entry in self._effective_properties().get("listeners", "").split(","):
            name, _, address = entry.strip().partition("://")
            if name == listener:
                return address
        raise ServiceError(
            f"Kafka has no address for listener {listener!r}: Kafka has not been started yet, or has no listener with "
            "this name"
        )

    def _effective_properties(self) -> dict[str, str]:
        """Return the content of server.properties. The caller's properties take precedence, even over addresses."""
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

    def _program(self) -> list[str]:
        jars = kafka_jars(self.version)
        flags = self._jvm_flags if self._jvm_flags is not None else (*FAST_START, *_class_data(self.version))
        logging = f"-Dlog4j.configuration=file:{self.data_dir}/log4j.properties"
        return [str(java_command()), f"-Xmx{self._heap}", *flags, logging, "-cp", ":".join(map(str, jars))]

    def _launch(self, program: list[str]) -> None:
        """Format the data directory if it is new, start the broker, and return when all partitions have a leader."""
        (self.data_dir / "log4j.properties").write_text(LOG4J)
        config = self.data_dir / "server.properties"
        config.write_text("".join(f"{k}={_escaped(v)}\n" for k, v in self._effective_properties().items()))
        meta = self.data_dir / "logs" / "meta.properties"
        if not meta.exists():
            command = [
                *program,
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self._cluster_id}",
                "-c",
                str(config),
            ]
            self._format([*command, *self._features])
        cluster_id = next(line[11:] for line in meta.read_text().splitlines() if line.startswith("cluster.id="))
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # Refused connections are normal while the broker starts.
            }
        )
        self._serve([*program, "kafka.Kafka", str(config)], lambda: self._is_ready(admin, cluster_id))

    def _format(self, command: list[str]) -> None:
        code = self._run(command).wait(_FORMAT_TIMEOUT_S)
        if code != 0:
            raise ServiceError(f"cannot format {self.data_dir} (exit code {code})")

    def _is_ready(self, admin: AdminClient, cluster_id: str) -> bool:
        """Whether this cluster reports its broker and a leader for every partition.

        Another cluster on the same port does not count.
        """
        try:
            metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_S)
        except KafkaException:
            return False
        node_id = int(self._effective_properties()["node.id"])
        leaders = [part.leader for topic in metadata.topics.values() for part in topic.partitions.values()]
        return metadata.cluster_id == cluster_id and node_id in metadata.brokers and all(n >= 0 for n in leaders)


@functools.cache
def _class_data(version: str) -> tuple[str, ...]:
    """Return the flags for Kafka's class data archive.

    If the archive is missing, start and stop a broker once to create it.
    """
    if version != DEFAULT_KAFKA_VERSION:
        return ()  # this version is started too rarely for an archive to pay off

    def train(flags: Sequence[str]) -> None:
        with LocalKafka(version=version, jvm_flags=(*FAST_START, *flags)) as kafka:
            kafka.stop()

    return class_data_flags(archive_in(cache_dir() / "class-data", f"kafka-{version}"), train)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n\\\n")
