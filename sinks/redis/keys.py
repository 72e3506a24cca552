"""What the sink calls its own keys in Redis. All of them begin with ``twopc:<sink>:``.

The part in braces is a hash tag: in a cluster it puts a key into the slot of the data that it stands for, so that one
script may change both at once.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from redis.crc import key_slot

PREFIX: Final = "twopc:"
#: Without a cluster there is one atomic place; it is called by this number.
NO_SLOT: Final = -1
SLOTS: Final = 16_384


def control(sink: str) -> str:
    """A hash: who drives the sink (``run``, ``query_id``, ``driver_epoch``), its ``id``; ``version``: the highest given out.

    ``decided``: that of this lineage's newest decision.
    """
    return f"{PREFIX}{sink}:{{{sink}}}:control"


def slices(sink: str) -> str:
    """A hash, ``<driver_epoch>:<uuid>`` -> the slots of that slice: what the sweep looks through."""
    return f"{PREFIX}{sink}:{{{sink}}}:slices"


def applied(sink: str, slot: int) -> str:
    """A hash of one slot: its fence (``base``), and for each slice of that decision how far it is applied."""
    return f"{PREFIX}{sink}:{{{_tag(sink, slot)}}}:applied"


def staged(sink: str, slot: int, entry: str) -> str:
    """A hash of one slot: chunk number -> chunk. ``entry`` is the slice's field in :func:`slices`."""
    return f"{PREFIX}{sink}:{{{_tag(sink, slot)}}}:slice:{entry}"


def slot_of_control(sink: str) -> int:
    """The slot of :func:`control` and :func:`slices`."""
    return key_slot(sink.encode())


def _tag(sink: str, slot: int) -> str:
    return sink if slot == NO_SLOT else _tags()[slot]


@cache
def _tags() -> tuple[str, ...]:
    """For each slot the first number that hashes to it."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SLOTS:
        found.setdefault(key_slot(b"%d" % number), str(number))
        number += 1
    return tuple(found[slot] for slot in range(SLOTS))
