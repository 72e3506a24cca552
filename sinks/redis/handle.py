"""What the driver holds of a slice in Redis."""

from __future__ import annotations

from dataclasses import dataclass

from sinks.staged.slices import StagedHandle


@dataclass(frozen=True, kw_only=True)
class RedisHandle(StagedHandle):
    """A prepared slice; its checksum is a SHA-1 over the chunks' SHA-1, slot by slot.

    Attributes:
        groups: for each hash slot its number (-1 without a cluster), its chunks, and its weight: about how many small
            commands they are worth, by count or size. The driver limits by weight what it sends at once.
    """

    groups: tuple[tuple[int, int, int], ...]

    @property
    def slots(self) -> tuple[int, ...]:
        """The hash slots that hold a part of it."""
        return tuple(slot for slot, _, _ in self.groups)
