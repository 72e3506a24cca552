"""Which kills a run gets: at named steps of the protocol and while it writes, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from twopc.crash_points import POINTS

#: Every fourth kill comes from outside, between the named steps.
_OUTSIDE_SHARE: Final = 0.25
#: A run's share of the input is at least this many batches, so that its kill finds its moment.
BATCHES_A_KILL: Final = 2
_EARLIEST, _LATEST = 0.02, 0.9


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A SIGKILL to come.

    Attributes:
        point: the crash point at which a process of the query kills itself, None for a kill from outside.
        passage: at which passage of the point, counted from the start of the process.
        progress: a kill from outside comes when this share of a run's first batches has been written.
        after: the same in records, once the size of the batches is known.
    """

    point: str | None
    passage: int = 1
    progress: float = 0.0
    after: int = 1

    @property
    def fault(self) -> str:
        """What arms it, for :func:`twopc.testing.crash_points.arm_from`."""
        return f"{self.point}@{self.passage}=kill" if self.point else ""

    @property
    def step(self) -> str:
        """How it is reported."""
        return f"{self.point}@{self.passage}" if self.point else "outside"

    @property
    def hits_worker(self) -> bool:
        """Whether it kills a Python worker: then the task fails, the query with it, and the driver ends by itself."""
        return self.point is not None and self.point.startswith("task.")


def outside_kills(seed: int, count: int) -> list[Kill]:
    """Kills from outside only: they work with any sink."""
    chance = random.Random(f"outside {seed}")  # noqa: S311 - chaos, not cryptography
    return [_outside(chance) for _ in range(count)]


def protocol_kills(seed: int, count: int) -> list[Kill]:
    """Kills at steps of the protocol, none twice before each has had its turn, and some from outside."""
    chance = random.Random(f"protocol {seed}")  # noqa: S311 - chaos, not cryptography
    outside = round(count * _OUTSIDE_SHARE)
    kills = [_outside(chance) for _ in range(outside)]
    while len(kills) < count:
        round_of = chance.sample(POINTS, min(len(POINTS), count - len(kills)))
        kills += [Kill(point=name, passage=_passage(name, chance)) for name in round_of]
    chance.shuffle(kills)
    return kills


def _outside(chance: random.Random) -> Kill:
    return Kill(point=None, progress=chance.uniform(_EARLIEST, _LATEST))


def _passage(name: str, chance: random.Random) -> int:
    once_a_run = name in {"driver.inspected", "driver.acquired", "driver.recovered"}
    return 1 if once_a_run else chance.randint(1, BATCHES_A_KILL)
