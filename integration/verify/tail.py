"""Read a topic piece by piece. Each read resumes where the previous read ended.

A broker may delete records before they are read. So a record that was not read may have been deleted as intended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twopc.integration.verify.cluster import Bounds
from twopc.sinks.kafka.errors import on_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Message

    from twopc.integration.verify.cluster import Cluster


@dataclass
class Tail:
    """The part of a topic that has not been read yet."""

    bounds: Bounds = field(default_factory=lambda: Bounds({}, {}, {}))  #: the latest bounds
    records: int = 0  #: the number of records read so far
    starts_late: bool = False  #: whether records had been deleted before the first read
    skipped: bool = False  #: whether records were deleted later, before they were read
    _positions: dict[int, int] = field(default_factory=dict)

    def update(self, bounds: Bounds) -> None:
        """Set the bounds for the next read."""
        if not self._positions:
            self.starts_late = any(bounds.starts.values())
        self.bounds = bounds
        for partition, start in bounds.starts.items():
            if self._positions.setdefault(partition, start) < start:
                self._positions[partition] = start
                self.skipped = True

    @property
    def unread(self) -> int:
        """The number of offsets that have not been read yet. Some offsets contain no record."""
        return sum(max(0, end - self._positions[partition]) for partition, end in self.bounds.stable.items())

    def read_new(self, cluster: Cluster, topic: str) -> Iterator[list[Message]]:
        """Yield the records up to the last stable offsets.

        Raises:
            TwoPhaseCommitError: some records could not be read. The next call starts with these records.
        """
        positions = self._positions
        for messages in cluster.read(topic, positions, self.bounds.stable):
            self.records += len(messages)
            # Set this now, not at the end. After an error, the next call resumes at this position, so no record is yielded twice.
            positions.update({message.partition() or 0: (message.offset() or 0) + 1 for message in messages})
            yield messages
        positions.update({partition: max(end, positions[partition]) for partition, end in self.bounds.stable.items()})


def why_deleted(cluster: Cluster, topics: Mapping[str, Tail]) -> str | None:
    """Say which topics lack records that a broker has deleted. Return None if no topic is known to lack any.

    Raises:
        TwoPhaseCommitError: the brokers do not respond.
    """
    deleted = [topic for topic, tail in topics.items() if tail.skipped or tail.starts_late]
    if dropped := deleted or [topic for topic in topics if cluster.is_compacted(topic)]:
        return f"records were deleted from {', '.join(dropped)} (retention, compaction)"
    return None


def why_maybe_deleted(cluster: Cluster, topics: Mapping[str, Tail]) -> str | None:
    """Say which topics may be compacted, and how to find out. Return None if the settings of all topics are known.

    Raises:
        TwoPhaseCommitError: the brokers do not respond.
    """
    unknown = [topic for topic in topics if cluster.is_compacted(topic) is None]
    if not unknown:
        return None
    return (
        f"{', '.join(unknown)} may be compacted, in which case compaction may have deleted records. To let this command find "
        f"out, allow {' and '.join(on_topic('DescribeConfigs', topic) for topic in unknown)}"
    )
