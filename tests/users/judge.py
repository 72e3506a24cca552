"""Compare the product's results with those of the reference."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.users.piece import Loose
from tests.users.recorder import NAMED, RAW
from tests.users.runner import HUNG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.users.program import Program
    from tests.users.recorder import Event
    from tests.users.reference import Call, Rows
    from tests.users.runner import Expected, Outcome

#: Words that tell the user what to do.
_ADVICE: Final = re.compile(
    r"\b(add|allow|await|call|cast|change|correct|create|fill|filter|give|join|keep|leave|let|look|make|pass|persist|put|raise|read|remove|rename|"
    r"omit|repeat|replace|rerun|restart|return|run|select|set|start|stop|unset|use|wait|wrap|write)\b",
    re.IGNORECASE,
)
_SHOWN: Final = 6


def judged(program: Program, reference: Expected, outcome: Outcome) -> list[str]:
    """Return the faults, in words; empty if all is well."""
    if hung := [event for event in outcome.events if event.what == HUNG]:
        return [f"hung: {hung[0].text}"]
    wrong = [*_errors(program, reference, outcome)]
    wrong += [
        f"left open: {one}" for one in outcome.left_open if not (_is_stuck(program, outcome) and ".driver " in one)
    ]
    return wrong + _rows(program, reference, outcome)


def _is_stuck(program: Program, outcome: Outcome) -> bool:
    """Whether an interrupted program can no longer write, because its calls are refused.

    An interruption may leave the driver's own transaction open. It holds back only the readers of the ledger, and the next start
    that is not refused ends it.
    """
    return bool(program.faults) and any(event.kind == NAMED for event in outcome.events)


def _errors(program: Program, reference: Expected, outcome: Outcome) -> Iterator[str]:
    """Errors that do not tell the user what to change, and refusals of a correct program."""
    own = {event.error for event in reference.events if event.kind}
    for event in outcome.events:
        if event.kind == RAW and event.error not in own:
            yield f"raw error: {event.what} in batch {event.batch}: {event.error}: {event.text[:1500]}"
        if event.kind == NAMED and not _ADVICE.search(event.text):
            yield f"an error without advice: {event.error}: {event.text}"
        if event.kind == NAMED and not program.mistakes and not own:
            yield f"refused without a mistake: batch {event.batch}: {event.error}: {event.text}"


def _rows(program: Program, reference: Expected, outcome: Outcome) -> list[str]:
    calls = reference.calls
    full = _sum(calls, outcome.visible)
    has_failed = any(event.kind for event in reference.events)
    if has_failed and not any(event.kind in {RAW, NAMED} for event in outcome.events):
        # The product completed what plain Spark could not, so only lost rows count.
        lost = [f"lost rows of {sink}: {_shown(full[sink] - seen)}" for sink, seen in outcome.visible.items()]
        return [text for text, sink in zip(lost, outcome.visible, strict=True) if full[sink] - outcome.visible[sink]]
    if any(
        _same(program, _sum(chosen, outcome.visible), outcome.visible) for chosen in _allowed(calls, outcome.events)
    ):
        return []
    return [
        f"rows: {sink}: {sum(seen.values())} instead of {sum(full[sink].values())}; "
        f"lost {_shown(_of(program, full[sink]) - _of(program, seen))}, "
        f"too many {_shown(_of(program, seen) - _of(program, full[sink]))}"
        for sink, seen in outcome.visible.items()
    ]


def _allowed(calls: Sequence[Call], events: Sequence[Event]) -> Iterator[list[Call]]:
    """Every set of calls that may be visible: whole batches up to the first that failed by name, and of that one some calls."""
    places = sorted({(call.query, call.batch) for call in calls})
    choices: list[list[tuple[Call, ...]]] = []
    for place in places:
        of_batch = [call for call in calls if (call.query, call.batch) == place]
        here = [event for event in events if (event.query, event.batch) == place]
        if not here:
            choices.append([()])
        elif any(event.kind in {NAMED, RAW} for event in here):
            sizes = range(len(of_batch) + 1)
            choices.append([chosen for size in sizes for chosen in itertools.combinations(of_batch, size)])
        else:
            choices.append([tuple(of_batch)])
    for chosen in itertools.product(*choices):
        if not _has_gap(places, chosen, calls):
            yield [call for of_batch in chosen for call in of_batch]


def _has_gap(places: Sequence[tuple[int, int]], chosen: Sequence[Sequence[Call]], calls: Sequence[Call]) -> bool:
    """Whether a batch is visible after one that had rows and is not visible."""
    missing = set()
    for place, of_batch in zip(places, chosen, strict=True):
        if of_batch:
            if place[0] in missing and any(any(call.rows.values()) for call in of_batch):
                return True
        elif any(any(call.rows.values()) for call in calls if (call.query, call.batch) == place):
            missing.add(place[0])
    return False


def _sum(calls: Iterable[Call], sinks: Iterable[str]) -> dict[str, Rows]:
    total: dict[str, Rows] = {sink: Counter() for sink in sinks}
    for call in calls:
        for sink, rows in call.rows.items():
            total[sink] += rows
    return total


def _same(program: Program, wanted: Mapping[str, Rows], seen: Mapping[str, Rows]) -> bool:
    if program.loose is Loose.UNION:
        return _ids(sum(wanted.values(), Counter())) == _ids(sum(seen.values(), Counter()))
    if program.loose in {Loose.SOME, Loose.ANY}:
        given = Counter(str(row["id"]).encode() for rows in program.batches for row in rows)
        bound = Counter({name: count * program.copies for name, count in given.items()})
        if any(_ids(rows) - bound for rows in seen.values()):
            return False
        return program.loose is Loose.ANY or all(
            sum(wanted[sink].values()) == sum(seen[sink].values()) for sink in seen
        )
    return all(_of(program, wanted[sink]) == _of(program, seen[sink]) for sink in seen)


def _of(program: Program, rows: Rows) -> Counter[object]:
    return Counter(rows) if program.loose is Loose.EXACT else Counter(_ids(rows))


def _ids(rows: Rows) -> Counter[bytes]:
    ids: Counter[bytes] = Counter()
    for (key, _), count in rows.items():
        ids[key] += count
    return ids


def _shown(rows: Mapping[Any, int]) -> str:
    some = ", ".join(f"{row!r}" for row in itertools.islice(rows, _SHOWN))
    return f"{sum(rows.values())} ({some}{', …' if len(rows) > _SHOWN else ''})"
