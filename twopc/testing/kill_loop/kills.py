"""Plan when to kill a query: at random moments drawn from a seed, or at fixed moments that expose faulty sinks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum
from itertools import cycle
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Moment(Enum):
    """The moment of a kill. All moments except POINT work with any sink."""

    #: The ``foreachBatch`` function has returned, but Spark has not yet recorded the batch as done, so Spark will replay the
    #: batch. For a query without such a function, the run ends on its own. The loop then deletes Spark's record of the last
    #: batch, which has the same effect.
    AFTER = "after"
    #: One task of the batch is held before its end, until other tasks have written their rows or have had time to write them.
    DURING = "during"
    #: Spark has planned the batch, but has not called the ``foreachBatch`` function.
    BEFORE = "before"
    #: Some time after a task of the batch has begun.
    RANDOM = "random"
    #: The output has grown by some records. Nothing in the query's processes waits for this kill.
    OUTSIDE = "outside"
    #: The query reaches a crash point of this toolkit.
    POINT = "point"


class Victim(Enum):
    """The processes that a kill terminates.

    A classic session has only ALL, because its driver, JVM and Python workers die together.
    """

    #: All processes of the query. Under Spark Connect: the server with its JVM and its workers, and the client.
    ALL = "all"
    #: The process in which the server calls the ``foreachBatch`` function. The query fails, but its server survives.
    WORKER = "worker"
    #: All processes except the function's process. That process stays stopped until the query's next run has finished a batch,
    #: and then continues as if nothing had happened.
    SERVER = "server"
    #: The client. Spark continues the query without a client; the next client connects to the same server.
    CLIENT = "client"


#: The victims under Spark Connect, in the order in which the kills are aimed at them.
OF_CONNECT: Final = (Victim.WORKER, Victim.SERVER, Victim.CLIENT, Victim.ALL)
#: The first kills of a query. These two kills always expose a sink that writes a replayed batch again.
ALWAYS_SHOWS = (Moment.AFTER, Moment.DURING)
_DRAWN = (Moment.AFTER, Moment.DURING, Moment.BEFORE, Moment.RANDOM, Moment.RANDOM)
_LONGEST_DELAY_S = 1.5
#: Each run receives input for about this many batches, so that the moment of its kill can come.
BATCHES_A_KILL = 2


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A planned SIGKILL for processes of the query.

    Attributes:
        moment: when the kill comes.
        victim: which processes the kill ends.
        point: the crash point, for POINT.
        passage: for POINT, how many times the point has been reached when the kill comes; for BEFORE and AFTER, the number
            of the batch in the run, counted from 1.
        delay_s: for RANDOM, the time from the beginning of the task to the kill, in seconds.
        progress: for OUTSIDE, the output's growth at which to kill the query, as a fraction of the records in the run's first
            batches.
        records: ``progress`` as a number of records. The loop computes this number.
    """

    moment: Moment
    victim: Victim = Victim.ALL
    point: str = ""
    passage: int = 1
    delay_s: float = 0.0
    progress: float = 0.0
    records: int = 1

    @property
    def is_in_task(self) -> bool:
        """Whether a task's Python worker kills itself, so that the query fails."""
        return self.point.startswith("task.")

    @property
    def fault(self) -> str:
        """The text that arms the crash point, for :func:`twopc.testing.crash_points.arm_from`; "" for all other moments."""
        return f"{self.point}@{self.passage}=kill" if self.point else ""

    def fitted(self, records: int, batch_rows: int) -> Kill:
        """Return this kill, moved to an earlier moment if a run with ``records`` new records would not reach it."""
        first_batches = min(records, BATCHES_A_KILL * batch_rows)
        return replace(
            self,
            passage=min(self.passage, max(1, records // batch_rows)),
            records=max(1, int(self.progress * first_batches)),
        )

    def __str__(self) -> str:
        """Describe the kill for reports."""
        return self._when if self.victim is Victim.ALL else f"{self._when} ({self.victim.value})"

    @property
    def _when(self) -> str:
        if self.moment is Moment.RANDOM:
            return f"random+{self.delay_s:.2f}s"
        if self.moment is Moment.OUTSIDE:
            return f"outside@{self.records}"
        return (
            self.moment.value if self.moment is Moment.DURING else f"{self.point or self.moment.value}@{self.passage}"
        )


def planned(seed: int, count: int, *, moments: Sequence[Moment], crash_points: Sequence[str]) -> list[Kill]:
    """Plan a kill for each crash point, then for each moment, in the given order. Draw the other kills from the seed."""
    chance = random.Random(f"kill loop {seed}")  # noqa: S311 - chaos, not cryptography
    fixed = [Kill(moment=Moment.POINT, point=point) for point in crash_points]
    fixed += [_kill(moment, chance) for moment in moments]
    drawn = [_kill(chance.choice(_DRAWN), chance) for _ in range(count)]
    return [*fixed, *drawn][:count]


def aimed(kills: Iterable[Kill], victims: Sequence[Victim]) -> list[Kill]:
    """Assign the victims to the kills in turn. A kill in a task already has its victim."""
    following = cycle(victims)
    return [kill if kill.is_in_task else replace(kill, victim=next(following)) for kill in kills]


def _kill(moment: Moment, chance: random.Random) -> Kill:
    return Kill(moment=moment, passage=chance.randint(1, BATCHES_A_KILL), delay_s=chance.uniform(0, _LONGEST_DELAY_S))
