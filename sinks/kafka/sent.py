"""Convert librdkafka's delivery counts to the handle's format."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def by_topic(delivered: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    """Nest the counts of delivered records: by topic, and within a topic by partition."""
    sent: dict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), count in delivered.items():
        sent[topic][partition] = count
    return sent


def ranges(numbers: list[int]) -> str:
    """Format ascending numbers as ``0-3,7``."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1] = [pieces[-1][0], number]
        else:
            pieces.append([number])
    return ",".join("-".join(map(str, piece)) for piece in pieces)
