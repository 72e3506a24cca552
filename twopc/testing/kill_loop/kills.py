"""Which kills a query gets: drawn from a seed, or at a fixed place of the batch where a sink that is wrong shows it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Moment(Enum):
    """When a query is killed. All but the last work with any sink."""

    #: The function of ``foreachBatch`` has returned and Spark has not noted the batch as done: Spark will replay it.
    AFTER = "after"
    #: One task of the batch is held before its end, until others have written their rows or had the time to.
    DURING = "during"
    #: Spark has planned the batch, the function of ``foreachBatch`` has not been called.
    BEFORE = "before"
    #: Some time after a task of the batch has begun.
    RANDOM = "random"
    #: A crash point of this toolkit.
    POINT = "point"


#: What a query gets first: with these two a sink that writes a replayed batch again always shows it.
ALWAYS_SHOWS = (Moment.AFTER, Moment.DURING)
_DRAWN = (Moment.AFTER, Moment.DURING, Moment.BEFORE, Moment.RANDOM, Moment.RANDOM)
_LONGEST_DELAY_S = 1.5


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A SIGKILL to come, of the query's driver, its JVM and its Python workers.

    Attributes:
        moment: when.
        point: the crash point, with :attr:`Moment.POINT`.
        batch: at which batch of the run, 1 or 2, with BEFORE and AFTER.
        delay_s: how long after the task has begun, with RANDOM.
    """

    moment: Moment
    point: str = ""
    batch: int = 1
    delay_s: float = 0.0

    def __str__(self) -> str:
        """As it is reported."""
        if self.moment is Moment.POINT:
            return self.point
        if self.moment is Moment.RANDOM:
            return f"random+{self.delay_s:.2f}s"
        return self.moment.value if self.moment is Moment.DURING else f"{self.moment.value}@{self.batch}"


def planned(seed: int, count: int, *, moments: Sequence[Moment], crash_points: Sequence[str]) -> list[Kill]:
    """The kills of a run: each crash point, then each moment, in the order given; what is left is drawn from the seed."""
    chance = random.Random(f"kill loop {seed}")  # noqa: S311 - chaos, not cryptography
    fixed = [Kill(moment=Moment.POINT, point=point) for point in crash_points]
    fixed += [_kill(moment, chance) for moment in moments]
    drawn = [_kill(chance.choice(_DRAWN), chance) for _ in range(count)]
    return [*fixed, *drawn][:count]


def _kill(moment: Moment, chance: random.Random) -> Kill:
    return Kill(moment=moment, batch=chance.randint(1, 2), delay_s=chance.uniform(0, _LONGEST_DELAY_S))
