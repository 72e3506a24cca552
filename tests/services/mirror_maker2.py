"""Kafka's MirrorMaker 2 in its dedicated mode, which copies topics from one cluster to another under their own names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.integration.services.jars import mirror_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.server import LOG4J, LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_REST: Final = "REST"
#: The two clusters' names in MirrorMaker 2's settings.
_SOURCE: Final = "former"
_TARGET: Final = "mirror"

#: Each cluster has one broker, so internal topics cannot have Kafka's default of three replicas. The other settings
#: avoid delays.
_PROPERTIES: Final[Mapping[str, str]] = {
    "clusters": f"{_SOURCE}, {_TARGET}",
    f"{_SOURCE}->{_TARGET}.enabled": "true",
    f"{_TARGET}->{_SOURCE}.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    # By default, MirrorMaker also copies aborted rows, and rows that are not decided yet.
    f"{_SOURCE}.consumer.isolation.level": "read_committed",
    "tasks.max": "1",
    "replication.factor": "1",
    **{
        f"{topic}.replication.factor": "1"
        for topic in (
            "checkpoints.topic",
            "heartbeats.topic",
            "offset-syncs.topic",
            "config.storage",
            "offset.storage",
            "status.storage",
        )
    },
    "emit.heartbeats.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "refresh.topics.interval.seconds": "1",
    "emit.checkpoints.enabled": "false",
    "offset.flush.interval.ms": "1000",
    # MirrorMaker writes nothing to the source.
    "offset-syncs.topic.location": "target",
}
_EXACTLY_ONCE: Final[Mapping[str, str]] = {
    f"{_TARGET}.exactly.once.source.support": "enabled",
    "dedicated.mode.enable.internal.rest": "true",
}


class MirrorMaker2(LocalServer):
    """Copies committed records until it is stopped or killed. A restart continues where it stopped.

    Attributes:
        properties: properties of `connect-mirror-maker`, except addresses; changes apply at the next start.
    """

    def __init__(
        self,
        source: str,
        target: str,
        topics: Sequence[str],
        *,
        exactly_once: bool = False,
        data_dir: Path | None = None,
    ) -> None:
        """Describe a MirrorMaker 2; nothing is started yet.

        Args:
            source: `host:port` of the cluster to copy from.
            target: `host:port` of the cluster to copy to.
            topics: the topics to copy. MirrorMaker creates them, and keeps partitions, keys, values, headers and times.
            exactly_once: copy in transactions. By default, records that were not yet recorded as copied are copied again after
                a kill.
            data_dir: see `LocalServer`.
        """
        super().__init__("MirrorMaker 2", [_REST], data_dir)
        flow = f"{_SOURCE}->{_TARGET}"
        self.properties: dict[str, str] = {
            **_PROPERTIES,
            f"{_SOURCE}.bootstrap.servers": source,
            f"{_TARGET}.bootstrap.servers": target,
            f"{flow}.topics": ",".join(topics),
            **(_EXACTLY_ONCE if exactly_once else {}),
        }

    def _program(self) -> list[str]:
        logging = f"-Dlog4j.configuration=file:{self.data_dir}/log4j.properties"
        jars = ":".join(map(str, mirror_jars()))
        start = "org.apache.kafka.connect.mirror.MirrorMaker"
        return [str(java_command()), "-Xmx256m", *FAST_START, logging, "-cp", jars, start]

    def _launch(self, program: list[str]) -> None:
        (self.data_dir / "log4j.properties").write_text(LOG4J)
        config = self.data_dir / "mm2.properties"
        properties = {**self.properties, "listeners": f"http://127.0.0.1:{self._ports[_REST]}"}
        config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._serve([*program, str(config)], lambda: "Kafka MirrorMaker started" in self._log_of_start())
