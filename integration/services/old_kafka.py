"""Run Kafka 0.10 with its ZooKeeper, for migrations: `with LocalOldKafka() as kafka: ... kafka.bootstrap_servers`.

Kafka 0.10 has no transactions, no idempotent producers and no KRaft, so it cannot be just another version of `LocalKafka`.
"""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from twopc.integration.services import ServiceError
from twopc.integration.services.jar_sets import OLD_KAFKA_VERSION
from twopc.integration.services.jars import old_kafka_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LOG4J, LocalServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_NODE_ID: Final = 1
_CLIENT: Final = "client"
_PLAINTEXT: Final = "PLAINTEXT"
_ANSWER_TIMEOUT_S: Final = 2.0
_METADATA_TIMEOUT_S: Final = 0.5
_SESSION_TIMEOUT_S: Final = 60.0

_PROPERTIES: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    # A killed broker stays registered until its session expires, and may start again only then. With 2 s, the session
    # of a starting broker may expire on a busy machine; that broker then runs, but never becomes the controller (a race
    # in 0.10 itself).
    "zookeeper.session.timeout.ms": "10000",
}


class LocalZooKeeper(LocalServer):
    """A single ZooKeeper. The server exits when its owner exits, even if kill -9 ends the owner."""

    def __init__(self, *, data_dir: Path | None = None) -> None:
        """Configure a ZooKeeper server. For `data_dir`, see `LocalServer`."""
        super().__init__("ZooKeeper", [_CLIENT], data_dir)
        self._jars: Sequence[Path] | None = None

    @property
    def address(self) -> str:
        """The address as `host:port`. Restarts do not change the address."""
        return f"{HOST}:{self._ports[_CLIENT]}"

    def ask(self, word: str) -> str:
        """Send one of ZooKeeper's four-letter words. Return the response, or "" if ZooKeeper does not respond."""
        try:
            with closing(socket.create_connection((HOST, self._ports[_CLIENT]), _ANSWER_TIMEOUT_S)) as connection:
                connection.sendall(word.encode())
                with connection.makefile("rb") as answer:
                    return answer.read().decode(errors="replace")
        except OSError:
            return ""

    def upgrade(self, jars: Sequence[Path]) -> None:
        """Stop ZooKeeper, and start the release that these jars contain, on the existing data."""
        self.stop()
        self._jars = jars
        self.start()

    def _program(self) -> list[str]:
        return _java(self, "128m", self._jars or old_kafka_jars())

    def _launch(self, program: list[str]) -> None:
        (self.data_dir / "log4j.properties").write_text(LOG4J)
        config = self.data_dir / "zoo.cfg"
        facts = {
            "dataDir": self.data_dir / "zookeeper",
            "clientPort": self._ports[_CLIENT],
            "clientPortAddress": HOST,
            "tickTime": 500,  # in milliseconds; a session lasts at most twenty ticks
            "maxClientCnxns": 0,
            # By default, ZooKeeper releases after 3.4 ignore `ask`, start an HTTP server, and reject data without a
            # snapshot.
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            "snapshot.trust.empty": "true",
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in facts.items()))
        command = [*program, "org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
        self._serve(command, lambda: self.ask("ruok") == "imok")


class LocalOldKafka(LocalServer):
    """A single Kafka 0.10 broker with a separate ZooKeeper.

    Both servers exit when their owner exits, even if kill -9 ends the owner. `stop`, `kill` and `pause` act on the broker;
    `zookeeper` keeps running, as it does in a real cluster.

    Attributes:
        version: `OLD_KAFKA_VERSION`.
        zookeeper: the ZooKeeper server, which runs from the first start until `close`.
        data_dir: the directory for everything that the broker writes, including its log, `broker.log`.
        properties: all broker properties except addresses; changes apply at the next start.
    """

    _LOG = "broker.log"
    version = OLD_KAFKA_VERSION

    def __init__(
        self, *, data_dir: Path | None = None, properties: Mapping[str, str] | None = None, heap: str = "256m"
    ) -> None:
        """Configure both servers, but do not start them yet.

        Args:
            data_dir: see `LocalServer`. The directory also contains ZooKeeper's directory.
            properties: broker properties that override or add to the defaults.
            heap: maximum Java heap (`-Xmx`) of the broker.
        """
        super().__init__(f"Kafka {self.version}", [_PLAINTEXT], data_dir)
        self.properties = {**_PROPERTIES, **(properties or {})}
        self.zookeeper = LocalZooKeeper(data_dir=self.data_dir / "its-zookeeper")
        self._heap = heap

    @property
    def bootstrap_servers(self) -> str:
        """The address as `host:port`. Restarts do not change the address."""
        return f"{HOST}:{self._ports[_PLAINTEXT]}"

    def close(self) -> None:
        """Stop the broker first, because it cannot stop without ZooKeeper.

        Then stop ZooKeeper, and remove the directory if it is temporary.
        """
        self._end()
        self.zookeeper.close()
        super().close()

    def _program(self) -> list[str]:
        return _java(self, self._heap, self._jars())

    def _jars(self) -> Sequence[Path]:
        return old_kafka_jars()

    def _launch(self, program: list[str]) -> None:
        """Start both servers, and wait until all partitions have a leader."""
        (self.data_dir / "log4j.properties").write_text(LOG4J)
        self._await_zookeeper()
        config = self.data_dir / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._facts().items()))
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # Refused connections are normal while the broker starts.
            }
        )
        self._serve([*program, "kafka.Kafka", str(config)], lambda: _has_leaders(admin))

    def _facts(self) -> dict[str, str]:
        return {
            "broker.id": str(_NODE_ID),
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "zookeeper.connect": self.zookeeper.address,
            "log.dirs": str(self.data_dir / "logs"),
            **self.properties,
        }

    def _await_zookeeper(self) -> None:
        """Wait until ZooKeeper runs and has forgotten the broker's previous process."""
        if not self.zookeeper.is_running:
            self.zookeeper.start()
        registered = f"/brokers/ids/{_NODE_ID}"
        if not wait_until(lambda: registered not in self.zookeeper.ask("dump"), _SESSION_TIMEOUT_S):
            raise ServiceError(f"ZooKeeper still listed the previous broker after {_SESSION_TIMEOUT_S:g} s")


def _java(server: LocalServer, heap: str, jars: Sequence[Path]) -> list[str]:
    logging = f"-Dlog4j.configuration=file:{server.data_dir}/log4j.properties"
    return [str(java_command()), f"-Xmx{heap}", *FAST_START, logging, "-cp", ":".join(map(str, jars))]


def _has_leaders(admin: AdminClient) -> bool:
    """Whether the broker responds, is registered, and leads every partition."""
    try:
        metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_S)
    except KafkaException:
        return False
    leaders = [part.leader for topic in metadata.topics.values() for part in topic.partitions.values()]
    return _NODE_ID in metadata.brokers and all(leader == _NODE_ID for leader in leaders)
