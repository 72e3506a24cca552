"""Upgrade a Kafka 0.10 broker in place, release by release, to a current release, which needs no ZooKeeper.

Usage: `with UpgradedKafka() as kafka: for step in UPGRADE: kafka.upgrade(step) …`. The upgrade keeps the broker's address,
topics, offsets and records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.integration.services import ServiceError
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION, OLD_KAFKA_VERSION
from twopc.integration.services.jars import kafka_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.old_kafka import LocalOldKafka
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LOG4J, LocalServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CONTROLLER: Final = "CONTROLLER"
_CONTROLLER_ID: Final = 3000
_MIGRATION_TIMEOUT_S: Final = 120.0
_MIGRATED: Final = "Completed migration of metadata from ZooKeeper to KRaft"
#: The last release that supports ZooKeeper.
_LAST_VERSION: Final = "3.9.1"

#: With one broker, internal topics cannot have Kafka's default of three replicas. 0.10 ignores settings that it does not
#: recognize.
_ONE_BROKER: Final[Mapping[str, str]] = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
}


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """One step of the upgrade: a restart of the broker with new settings.

    Attributes:
        version: the Kafka version, which determines the ZooKeeper version.
        protocol: `inter.broker.protocol.version`; for Kafka 2.x, also `log.message.format.version`. "" without ZooKeeper.
        mode: where the cluster keeps its metadata: `zookeeper`, `migrating` (copied to a KRaft controller), `kraft`.
    """

    version: str
    protocol: str = ""
    mode: str = "zookeeper"

    def __str__(self) -> str:
        """Describe the step for reports."""
        what = {"zookeeper": f"protocol {self.protocol}", "migrating": "migrating to KRaft", "kraft": "KRaft"}
        return f"{self.version}, {what[self.mode]}"


#: The steps follow the Kafka upgrade notes: first the new code, then the new protocol. Next come the last release that
#: supports ZooKeeper, the migration from ZooKeeper, and the newest release.
UPGRADE: Final = (
    Upgrade(version="2.8.2", protocol="0.10.2"),
    Upgrade(version="2.8.2", protocol="2.8"),
    Upgrade(version=_LAST_VERSION, protocol="2.8"),
    Upgrade(version=_LAST_VERSION, protocol="3.9"),
    Upgrade(version=_LAST_VERSION, protocol="3.9", mode="migrating"),
    Upgrade(version=_LAST_VERSION, mode="kraft"),
    Upgrade(version=DEFAULT_KAFKA_VERSION, mode="kraft"),
)


class UpgradedKafka(LocalOldKafka):
    """A broker that begins as Kafka 0.10.2.2, with its ZooKeeper. See `upgrade`.

    Attributes:
        version: the release that is running.
        controller: the KRaft controller; None before the migration begins.
    """

    def __init__(self, *, data_dir: Path | None = None) -> None:
        """Configure a broker, but do not start it yet. For `data_dir` see `LocalServer`."""
        super().__init__(data_dir=data_dir, properties=_ONE_BROKER)
        self._step = Upgrade(version=OLD_KAFKA_VERSION, protocol="0.10.2")
        self.controller: LocalController | None = None

    def upgrade(self, step: Upgrade) -> None:
        """Stop the broker in an orderly way, and start another release on its data.

        Wait until the new broker leads every partition.

        Raises:
            ServiceError: the release does not start, or its metadata does not reach the controller.
        """
        self.stop()
        previous, self._step, self.version = self._step, step, step.version
        if step.mode == "zookeeper" and step.version != previous.version:
            self.zookeeper.upgrade(kafka_jars(step.version))
        if step.mode != "zookeeper":
            self._upgrade_controller(step)
        self.start()
        if step.mode == "migrating" and self.controller is not None:
            self.controller.await_migration()
        if step.mode == "kraft":
            self.zookeeper.stop()

    def close(self) -> None:
        """Stop all servers, and remove the directory if it is temporary."""
        self.stop()
        if self.controller is not None:
            self.controller.close()
        super().close()

    def _upgrade_controller(self, step: Upgrade) -> None:
        is_migrating = step.mode == "migrating"
        zookeeper = self.zookeeper.address if is_migrating else None
        if self.controller is None:
            meta = (self.data_dir / "logs" / "meta.properties").read_text()
            cluster_id = next(line[11:] for line in meta.splitlines() if line.startswith("cluster.id="))
            self.controller = LocalController(cluster_id, data_dir=self.data_dir / "its-controller")
        self.controller.stop()
        self.controller.version, self.controller.zookeeper = step.version, zookeeper
        self.controller.start()

    def _jars(self) -> Sequence[Path]:
        return super()._jars() if self._step.version == OLD_KAFKA_VERSION else kafka_jars(self._step.version)

    def _facts(self) -> dict[str, str]:
        step, facts = self._step, super()._facts()
        if step.version == OLD_KAFKA_VERSION:
            return facts
        if step.protocol:
            facts["inter.broker.protocol.version"] = step.protocol
            if step.version.startswith("2."):
                facts["log.message.format.version"] = step.protocol
        if self.controller is not None:
            facts |= self.controller.known_to_brokers()
        if step.mode == "migrating":
            facts["zookeeper.metadata.migration.enable"] = "true"
        if step.mode == "kraft":
            del facts["zookeeper.connect"], facts["zookeeper.session.timeout.ms"]
            facts |= {"process.roles": "broker", "node.id": facts.pop("broker.id")}
        return facts

    def _await_zookeeper(self) -> None:
        if self._step.mode != "kraft":
            super()._await_zookeeper()


class LocalController(LocalServer):
    """A KRaft controller. Brokers that use ZooKeeper migrate to this controller.

    Attributes:
        version: the version of Kafka; a change applies at the next start.
        zookeeper: the address to migrate from; None once the migration is done.
    """

    _LOG = "controller.log"

    def __init__(self, cluster_id: str, *, data_dir: Path) -> None:
        """Configure a controller, but do not start it yet."""
        super().__init__("KRaft controller", [_CONTROLLER], data_dir)
        self.version = _LAST_VERSION
        self.zookeeper: str | None = None
        self._cluster_id = cluster_id

    def known_to_brokers(self) -> dict[str, str]:
        """Return the properties that brokers need to find the controller."""
        return {
            "controller.quorum.voters": f"{_CONTROLLER_ID}@{HOST}:{self._ports[_CONTROLLER]}",
            "controller.listener.names": _CONTROLLER,
            "listener.security.protocol.map": f"{_CONTROLLER}:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }

    def await_migration(self) -> None:
        """Wait until the controller has the brokers' metadata.

        Raises:
            ServiceError: the metadata did not arrive in time.
        """
        if not wait_until(lambda: _MIGRATED in self._log_of_start(), _MIGRATION_TIMEOUT_S):
            raise ServiceError(f"the migration did not finish within {_MIGRATION_TIMEOUT_S:g} s; see {self.log_path}")

    def _program(self) -> list[str]:
        logging = f"-Dlog4j.configuration=file:{self.data_dir}/log4j.properties"
        jars = ":".join(map(str, kafka_jars(self.version)))
        return [str(java_command()), "-Xmx256m", *FAST_START, logging, "-cp", jars]

    def _launch(self, program: list[str]) -> None:
        (self.data_dir / "log4j.properties").write_text(LOG4J)
        facts = {
            **self.known_to_brokers(),
            "process.roles": "controller",
            "node.id": str(_CONTROLLER_ID),
            "listeners": f"{_CONTROLLER}://{HOST}:{self._ports[_CONTROLLER]}",
            "log.dirs": str(self.data_dir / "logs"),
        }
        if self.zookeeper is not None:
            facts |= {"zookeeper.metadata.migration.enable": "true", "zookeeper.connect": self.zookeeper}
        config = self.data_dir / "controller.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in facts.items()))
        if not (self.data_dir / "logs" / "meta.properties").exists():
            format_ = ["kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", "-c", str(config)]
            if self._run([*program, *format_]).wait(self._START_TIMEOUT_S) != 0:
                raise ServiceError(f"cannot format {self.data_dir}")
        self._serve([*program, "kafka.Kafka", str(config)], lambda: "Kafka Server started" in self._log_of_start())
