"""The outcome of a kill loop."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.testing.kill_loop.kills import Moment
from twopc.testing.kill_loop.records import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SHOWN = 5
#: The condition for each moment to come. Every other kill that must come is at a crash point.
_NEEDS: Final = {
    Moment.AFTER.value: "Each run must finish at least one batch",
    Moment.DURING.value: "Each batch must have at least two input partitions",
}
_POINT_NEEDS: Final = "Name crash points that every run of this query passes"
#: A run without these kills still proves something. ``before`` never comes without ``foreachBatch``; the others are drawn.
_MAY_BE_MISSED: Final = {Moment.BEFORE.value, Moment.RANDOM.value, Moment.OUTSIDE.value}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The output of a query that was killed repeatedly, compared with its input.

    Attributes:
        seed: the seed of the kills.
        given: the number of records in the query's input.
        found: the number of records that ``read`` returned.
        lost: records that are not in the output.
        duplicated: records that are in the output more than once, with their counts.
        made_up: records that ``read`` returned although they were not in the input.
        out_of_order: records that ``read`` returned after a later record with the same key. This is useful only if
            ``read`` keeps the output's order.
        kills: the kills that happened.
        missed: the kills whose moment never came. For example, the moment ``before`` never comes if the query has no
            ``foreachBatch``.
        seconds: how long all runs took together, in seconds.
        zombies: how the function call ended in each ``foreachBatch`` worker process that outlived its server, which is possible
            only under Spark Connect. The value is an error's name, such as ``FencedError``; ``no error``; ``died`` if the
            process ended without a result; or ``did not end``.
    """

    seed: int
    given: int
    found: int
    lost: tuple[int, ...]
    duplicated: dict[int, int]
    made_up: tuple[int, ...]
    out_of_order: tuple[int, ...]
    kills: tuple[str, ...]
    missed: tuple[str, ...]
    seconds: float
    zombies: tuple[str, ...] = ()

    @property
    def is_exactly_once(self) -> bool:
        """Whether the output contains every record exactly once, and no other records."""
        return not (self.lost or self.duplicated or self.made_up)

    def require_exactly_once(self, *, in_order: bool = False) -> None:
        """Fail unless the output contains every record once.

        Args:
            in_order: also fail if a record comes after a later record with the same key.

        Raises:
            AssertionError: a record is lost, duplicated or made up, or no kill happened, or a planned kill ``after``,
                ``during`` or at a crash point never came. The message contains the seed.
        """
        if not self.is_exactly_once:
            raise AssertionError(f"NOT exactly once: {self}")
        if in_order and self.out_of_order:
            raise AssertionError(
                f"{counted(len(self.out_of_order), 'row')} out of order ({_some(self.out_of_order)}): {self}"
            )
        if not self.kills:
            raise AssertionError(f"no kill happened, so this run proves nothing: {self}")
        came = {_place(kill) for kill in self.kills}
        for place in map(_place, self.missed):
            if place not in came | _MAY_BE_MISSED:
                raise AssertionError(
                    f"the kill '{place}' never came, so this run proves nothing about a kill at that moment. "
                    f"{_NEEDS.get(place, _POINT_NEEDS)}. See the run-*.log files in the loop's directory: {self}"
                )

    def __str__(self) -> str:
        """Say in one line what the result is and how to reproduce it."""
        parts = [
            f"{counted(self.given, 'record')} in, {self.found} out",
            *(f"{len(rows)} {what} ({_some(rows)})" for what, rows in self._wrong() if rows),
            f"killed {', '.join(self.kills) or 'never'}",
            *([f"not reached: {', '.join(self.missed)}"] if self.missed else []),
            *([f"processes that outlived their server: {', '.join(self.zombies)}"] if self.zombies else []),
            f"{self.seconds:.0f} s; repeat with seed {self.seed}",
        ]
        return "; ".join(parts)

    def _wrong(self) -> list[tuple[str, tuple[int, ...]]]:
        return [
            ("lost", self.lost),
            ("duplicated", tuple(self.duplicated)),
            ("made up", self.made_up),
        ]


def _some(rows: tuple[int, ...]) -> str:
    return ", ".join(map(str, rows[:_SHOWN])) + (", …" if len(rows) > _SHOWN else "")


def _place(kill: str) -> str:
    """The moment or crash point of a kill, without its details."""
    return re.split("[@+ ]", kill)[0]


def judge(  # noqa: PLR0913 - all but the first two are passed by name, and have defaults
    given: int,
    found: Iterable[int],
    *,
    keys: int = KEYS,
    seed: int = 0,
    kills: Sequence[str] = (),
    missed: Sequence[str] = (),
    zombies: Sequence[str] = (),
    seconds: float = 0.0,
) -> Outcome:
    """Compare records 0 to ``given - 1`` with ``found``.

    This takes one byte of memory per record, and more for each wrong record.
    """
    seen, greatest = bytearray(given), [-1] * keys
    again: Counter[int] = Counter()
    made_up, out_of_order = [], []
    count = 0
    for number in found:
        count += 1
        if not 0 <= number < given:
            made_up.append(number)
            continue
        if seen[number]:
            again[number] += 1
        seen[number] = 1
        key = number % keys
        if number < greatest[key]:
            out_of_order.append(number)
        else:
            greatest[key] = number
    return Outcome(
        seed=seed,
        given=given,
        found=count,
        lost=tuple(number for number in range(given) if not seen[number]),
        duplicated={number: 1 + repeats for number, repeats in again.items()},
        made_up=tuple(dict.fromkeys(made_up)),
        out_of_order=tuple(out_of_order),
        kills=tuple(kills),
        missed=tuple(missed),
        zombies=tuple(zombies),
        seconds=seconds,
    )
