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

#: What tells the user what to do now: an imperative that begins a sentence, or follows a condition such as "To continue,".
_ADVICE: Final = re.compile(
    r"(?:^|[.:;?!]\s+|\n\s*)"
    r"(?:(?:also|either|first|instead|otherwise|then),?\s+"
    r"|(?:after|before|for|if|in|to|unless|when|with)\b(?:[^.]|\.\S)*?,\s+)?"
    r"(?:add|allow|await|call|cast|change|check|close|convert|correct|create|delete|do not|drop|fill|filter|fix|give|include|"
    r"increase|install|join|keep|leave|let|look|lower|make|move|omit|pass|persist|put|raise|read|remove|rename|repeat|replace|rerun|"
    r"restart|restore|return|run|select|set|start|stop|synchronize|unset|upgrade|use|wait|wrap|write)\b",
    re.IGNORECASE,
)
#: If one run of a random program shows more rows than this, another run without any row is not chance.
_LUCK: Final = 15
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
        # The product completed what plain Spark could not, so it may show more rows, but no id too often.
        lost = [
            f"lost rows of {sink}: {_shown(full[sink] - seen)}"
            for sink, seen in outcome.visible.items()
            if full[sink] - seen
        ]
        return lost + _too_many(program, outcome)
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


def _too_many(program: Program, outcome: Outcome) -> list[str]:
    over = {sink: _ids(seen) - _bound(program) for sink, seen in outcome.visible.items()}
    return [f"rows: {sink}: too many {_shown(ids)}" for sink, ids in over.items() if ids]


def _allowed(calls: Sequence[Call], events: Sequence[Event]) -> Iterator[list[Call]]:
    """Every set of calls that may be visible: whole batches up to the first that failed by name, and of that one some calls."""
    places = sorted({(call.query, call.batch) for call in calls})
    choices: list[list[tuple[Call, ...]]] = []
    for place in places:
        of_batch = [call for call in calls if (call.query, call.batch) == place]
        here = [event for event in events if (event.query, event.batch) == place]
        if not here:
            choices.append([()] if _is_excused(place, events) else [tuple(of_batch)])
        elif any(event.kind in {NAMED, RAW} for event in here):
            sizes = range(len(of_batch) + 1)
            choices.append([chosen for size in sizes for chosen in itertools.combinations(of_batch, size)])
        else:
            choices.append([tuple(of_batch)])
    for chosen in itertools.product(*choices):
        if not _has_gap(places, chosen, calls):
            yield [call for of_batch in chosen for call in of_batch]


def _is_excused(place: tuple[int, int], events: Sequence[Event]) -> bool:
    """Whether an error explains why Spark never passed this batch to the function: of its query, or of the program."""
    query, batch = place
    errors = [event for event in events if event.kind in {NAMED, RAW}]
    return any(event.what in {"made", "program"} or (event.query == query and event.batch <= batch) for event in errors)


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
        total, found = (_ids(sum(rows.values(), Counter())) for rows in (wanted, seen))
        return total == found and (sum(total.values()) <= _LUCK or all(seen.values()))
    if program.loose in {Loose.SOME, Loose.ANY}:
        if any(_ids(rows) - _bound(program) for rows in seen.values()):
            return False
        counts = [(sum(wanted[sink].values()), sum(rows.values())) for sink, rows in seen.items()]
        if program.loose is Loose.ANY:
            return all(found or want <= _LUCK for want, found in counts)
        return all(want == found for want, found in counts)
    return all(_of(program, wanted[sink]) == _of(program, seen[sink]) for sink in seen)


def _bound(program: Program) -> Counter[bytes]:
    """How often each id may occur in a sink."""
    given = Counter(str(row["id"]).encode() for rows in program.batches for row in rows)
    return Counter({name: count * program.copies for name, count in given.items()})


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
