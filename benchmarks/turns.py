"""Run the sides of a case in turn. Each side runs once per round, and every second round uses the opposite order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from benchmarks.measured import Missing, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def in_turn(
    rounds: int, sides: Mapping[str, Callable[[], T]], *, warm_up: int = 0
) -> tuple[dict[str, list[T]], list[Missing]]:
    """Run each side once per round.

    Args:
        rounds: how many rounds count.
        sides: the function that runs each side, by name.
        warm_up: how many earlier rounds do not count.

    Returns:
        each side's results, round by round, and the sides that cannot be set up, which do not run again.
    """
    ran: dict[str, list[T]] = defaultdict(list)
    missing: dict[str, Missing] = {}
    for number in range(-warm_up, rounds):
        # The order alternates, so that a side does not always follow the same other side.
        for side in sorted(sides, key=list(sides).index, reverse=number % 2 != 0):
            if side in missing:
                continue
            try:
                found = sides[side]()
            except MissingError as error:
                missing[side] = Missing(name=side, reason=str(error))
                ran.pop(side, None)
            else:
                if number >= 0:
                    ran[side].append(found)
    return {side: ran[side] for side in sides if side in ran}, list(missing.values())
