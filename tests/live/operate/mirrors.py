"""A second cluster to which MirrorMaker 2 copies topics, and functions that check what has arrived there."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.live.rules.schedules import until
from tests.reader import committed, records
from tests.services.mirror_maker2 import MirrorMaker2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twopc.integration.services.kafka import LocalKafka

#: How long copying may take: MirrorMaker 2 first looks for new topics and partitions, and it shares two cores with two
#: brokers.
_COPIED_S = 60
#: A broker aborts a dead MirrorMaker's transaction after a minute, and looks for such transactions every ten seconds.
_ENDED_S = 120


def contents(servers: str, topic: str) -> Counter[tuple[int, bytes | None]]:
    """The records of a topic that a reader sees, by partition; empty without a topic."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    if topic not in admin.list_topics(timeout=30).topics:
        return Counter()
    return Counter((one.partition() or 0, one.value()) for one in records(servers, topic))


def positions(servers: str, topic: str) -> list[tuple[int, int, bytes | None]]:
    """Partition, offset and value of every record that a reader sees."""
    found = [(one.partition() or 0, one.offset() or 0, one.value()) for one in records(servers, topic)]
    return sorted(found, key=lambda one: one[:2])


def ends(servers: str, topic: str, isolation: IsolationLevel) -> dict[int, int]:
    """The end of each partition, as readers with this isolation level see it."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    asked = {
        TopicPartition(topic, partition): OffsetSpec.latest()
        for partition in admin.list_topics(topic).topics[topic].partitions
    }
    found = admin.list_offsets(asked, isolation_level=isolation)
    return {one.partition: answer.result().offset for one, answer in found.items()}


class Mirrored:
    """Two clusters, and the MirrorMaker that copies topics from the first to the second.

    Attributes:
        former: `host:port` of the first.
        mirror: the second.
        maker: copies while it runs.
    """

    def __init__(self, former: str, mirror: LocalKafka, topics: Sequence[str], *, exactly_once: bool = False) -> None:
        self.former, self.mirror, self.topics = former, mirror, tuple(topics)
        self.maker = MirrorMaker2(former, mirror.bootstrap_servers, topics, exactly_once=exactly_once)

    @property
    def servers(self) -> str:
        return self.mirror.bootstrap_servers

    def only(self, *topics: str) -> None:
        """Copy these topics from now on, and no others."""
        self.maker.stop()
        [name] = [name for name in self.maker.properties if name.endswith(".topics")]
        self.maker.properties[name] = ",".join(topics)
        self.maker.start()

    def hold_open(self) -> None:
        """Let the maker copy everything in one transaction after its first start, and leave this transaction open."""
        [flow] = [name.removesuffix("topics") for name in self.maker.properties if name.endswith("->mirror.topics")]
        self.maker.properties |= {
            f"{flow}transaction.boundary": "interval",
            f"{flow}transaction.boundary.interval.ms": "3600000",
        }

    def await_written(self, topic: str) -> None:
        """Wait until the mirror contains every committed record of a topic, even if in an open transaction."""
        wanted = committed(self.former, topic)

        def has_come() -> bool:
            return not wanted - committed(self.servers, topic, isolation="read_uncommitted")

        assert until(has_come, _COPIED_S), f"{topic} was not copied: {self.maker.log_path.read_text()[-3000:]}"

    def await_ended(self, topic: str) -> None:
        """Wait until no transaction is open in a topic of the mirror."""

        def is_stable() -> bool:
            stable, last = (
                ends(self.servers, topic, level)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            return stable == last

        assert until(is_stable, _ENDED_S), f"a transaction is still open in {topic}"

    def await_copied(self, *topics: str) -> None:
        """Wait until the mirror contains every committed record of these topics, by default of all topics."""
        for topic in topics or self.topics:
            wanted = contents(self.former, topic)

            def has_come(topic: str = topic, wanted: Counter[tuple[int, bytes | None]] = wanted) -> bool:
                return not wanted - contents(self.servers, topic)

            assert until(has_come, _COPIED_S), f"{topic} was not copied: {self.maker.log_path.read_text()[-3000:]}"


@contextlib.contextmanager
def mirroring(
    former: str, mirror: LocalKafka, topics: Sequence[str], *, exactly_once: bool = False
) -> Iterator[Mirrored]:
    """Copy topics until the body ends; the body may stop and restart the copying."""
    found = Mirrored(former, mirror, topics, exactly_once=exactly_once)
    with found.maker:
        yield found
