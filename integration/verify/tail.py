"""Read a topic piece by piece. Each read resumes where the previous read ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twopc.integration.verify.cluster import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

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
