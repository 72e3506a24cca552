"""Derive a run's kills from a seed.

Some kills happen at named steps in the protocol, and others happen while the query writes.
"""

from __future__ import annotations

import random
from typing import Final

from twopc.crash_points import POINTS
from twopc.testing.kill_loop import Kill, Moment

#: The share of kills that come from outside the query, at any time between the named steps.
_OUTSIDE_SHARE: Final = 0.25
_EARLIEST, _LATEST = 0.02, 0.9
_ONCE_A_RUN: Final = ("driver.inspected", "driver.acquired", "driver.recovered")
_LATEST_PASSAGE: Final = 2


def outside_kills(seed: int, count: int) -> list[Kill]:
    """Plan only kills from outside the query. These kills work with any sink."""
    chance = random.Random(f"outside {seed}")  # noqa: S311 - chaos, not cryptography
    return [_outside(chance) for _ in range(count)]


def protocol_kills(seed: int, count: int) -> list[Kill]:
    """Plan kills at steps of the protocol, and some kills from outside the query.

    Use every step once before repeating a step.
    """
    chance = random.Random(f"protocol {seed}")  # noqa: S311 - chaos, not cryptography
    kills = [_outside(chance) for _ in range(round(count * _OUTSIDE_SHARE))]
    while len(kills) < count:
        for point in chance.sample(POINTS, min(len(POINTS), count - len(kills))):
            passage = 1 if point in _ONCE_A_RUN else chance.randint(1, _LATEST_PASSAGE)
            kills.append(Kill(moment=Moment.POINT, point=point, passage=passage))
    chance.shuffle(kills)
    return kills


def _outside(chance: random.Random) -> Kill:
    return Kill(moment=Moment.OUTSIDE, progress=chance.uniform(_EARLIEST, _LATEST))
