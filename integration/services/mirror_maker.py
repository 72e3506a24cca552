"""Run Kafka MirrorMaker 1, which copies a topic from a Kafka 0.10 broker to a current cluster.

MirrorMaker 2 (Kafka Connect) needs broker features that 0.10 does not provide. Kafka 3.9 is the last release with
MirrorMaker 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.integration.services.jars import kafka_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.server import LOG4J, LocalServer

if TYPE_CHECKING:
    from pathlib import Path

MIRROR_MAKER_VERSION: Final = "3.9.1"


class MirrorMaker(LocalServer):
    """Copies a topic until :meth:`stop` is called.

    The copied records keep their keys, values and times. The Java partitioner chooses the partitions. If MirrorMaker is
    stopped in an orderly way (`stop`, `close`), no record is duplicated.
    """

    def __init__(self, source: str, target: str, topic: str, *, data_dir: Path | None = None) -> None:
        """Configure MirrorMaker, but do not start it yet.

        Args:
            source: the cluster to copy from, as `host:port`.
            target: the cluster to copy to, as `host:port`.
            topic: the topic to copy. The target must have a topic with the same name.
            data_dir: see `LocalServer`.
        """
        super().__init__("MirrorMaker", [], data_dir)
        self._source, self._target, self._topic = source, target, topic

    def _program(self) -> list[str]:
        logging = f"-Dlog4j.configuration=file:{self.data_dir}/log4j.properties"
        jars = ":".join(map(str, kafka_jars(MIRROR_MAKER_VERSION)))
        return [str(java_command()), "-Xmx256m", *FAST_START, logging, "-cp", jars, "kafka.tools.MirrorMaker"]

    def _launch(self, program: list[str]) -> None:
        (self.data_dir / "log4j.properties").write_text(LOG4J)
        consumer, producer = (self.data_dir / f"{side}.properties" for side in ("consumer", "producer"))
        consumer.write_text(
            f"bootstrap.servers={self._source}\ngroup.id=mirror-{self._topic}\nauto.offset.reset=earliest\n"
        )
        producer.write_text(f"bootstrap.servers={self._target}\n")
        files = ["--consumer.config", str(consumer), "--producer.config", str(producer)]
        self._serve([*program, *files, "--include", self._topic], lambda: True)
