"""Define the sink's own keys in Redis, and a slice's handle. All keys begin with ``twopc:<sink>:``.

In a cluster, the part of a key in braces (the hash tag) puts the key into the same hash slot as related data, so that one
script can change both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from redis.crc import key_slot

from twopc.sinks.redis.client import Call
from twopc.sinks.staged.slices import StagedHandle

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "twopc:"
#: Stands for a Redis server that is not part of a cluster. There, one atomic step can change any keys.
NO_SLOT: Final = -1
SLOTS: Final = 16_384


@dataclass(frozen=True, kw_only=True)
class RedisHandle(StagedHandle):
    """A prepared slice. The slice's checksum is the SHA-1 of the chunks' SHA-1 digests, slot by slot.

    Attributes:
        groups: for each hash slot, its number (-1 without a cluster), the number of its chunks, and the chunks' total
            weight. The weight is the approximate cost in units of a small command, calculated from the number and size of
            the commands. The driver limits the total weight of calls that it sends together.
    """

    groups: tuple[tuple[int, int, int], ...]

    @property
    def slots(self) -> tuple[int, ...]:
        """The hash slots that contain a part of the slice."""
        return tuple(slot for slot, _, _ in self.groups)


def control(sink: str) -> str:
    """Return the key of the hash whose field ``record`` is the control record (:mod:`twopc.control`)."""
    return f"{PREFIX}{sink}:{{{sink}}}:control"


def slices(sink: str) -> str:
    """Return the key of the hash that the sweep searches. The hash maps ``<driver_epoch>:<uuid>`` to the slice's hash slots."""
    return f"{PREFIX}{sink}:{{{sink}}}:slices"


def applied(sink: str, slot: int) -> str:
    """Return the key of the hash that contains the fence (``base``) and each slice's progress, in one hash slot."""
    return f"{PREFIX}{sink}:{{{_tag(sink, slot)}}}:applied"


def staged(sink: str, slot: int, entry: str) -> str:
    """Return the key of the hash that maps chunk numbers to chunks, in one hash slot. ``entry`` is a field in :func:`slices`."""
    return f"{PREFIX}{sink}:{{{_tag(sink, slot)}}}:slice:{entry}"


def scratch(sink: str, slot: int) -> str:
    """Return the key on which the check tries commands in one hash slot. Every script removes this key before it ends."""
    return f"{PREFIX}{sink}:{{{_tag(sink, slot)}}}:scratch"


def rehearsal(sink: str, slot: int) -> str:
    """Return the key of a hash in one hash slot.

    The hash contains copies of counters, so that the rehearsal can try out increments on them.
    """
    return f"{PREFIX}{sink}:{{{_tag(sink, slot)}}}:rehearsal"


def slot_of_control(sink: str) -> int:
    """Return the hash slot of :func:`control` and :func:`slices`."""
    return key_slot(sink.encode())


def unstage(sink: str, entry: str, slots: Iterable[int]) -> list[Call]:
    """Build the calls that remove a slice.

    The last call removes the entry, because the sweep finds a slice only by its entry.
    """
    calls = [Call(slot, ("UNLINK", staged(sink, slot, entry))) for slot in slots]
    return [*calls, remove_entry(sink, entry)]


def remove_entry(sink: str, entry: str) -> Call:
    """Build the call that removes a slice from the list that the sweep searches."""
    return Call(slot_of_control(sink), ("HDEL", slices(sink), entry))


def _tag(sink: str, slot: int) -> str:
    return sink if slot == NO_SLOT else _tags()[slot]


@cache
def _tags() -> tuple[str, ...]:
    """For each slot, find the first number that hashes to the slot."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(key_slot(b"%d" % number), str(number))
        number += 1
    return tuple(found[slot] for slot in range(SLOTS))
