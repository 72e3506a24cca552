"""The judge catches handmade outcomes, each of which contains one fault."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.users.judge import judged
from tests.users.piece import Loose
from tests.users.program import Program, Row
from tests.users.recorder import KILLED, NAMED, RAW, Event, Recorder, Watched, program_name
from tests.users.reference import Call, Rows
from tests.users.runner import HUNG, Expected, Outcome
from twopc.errors import ConfigurationError, RetriableError
from twopc.testing.crash_points import InjectedFault

SINK = "orders"
PROGRAM = Program(
    seed=1,
    pieces=(),
    text="",
    sinks=1,
    batches=(({"id": "0-00"}, {"id": "0-01"}), ({"id": "1-00"},), ({"id": "2-00"},)),
    source="files",
    faults=(),
    loose=Loose.EXACT,
    copies=1,
    mistakes=(),
    is_stateful=False,
)
WRONG = replace(PROGRAM, mistakes=("two calls",))
STUCK = replace(WRONG, faults=("driver.deciding@2=raise",))
ADVICE = "this is the second call for batch 1: write a batch with one call"


def rows(*ids: str, random: str = "") -> Rows:
    return Counter((name.encode(), f"{name}|{random}".encode()) for name in ids)


CALLS = [
    Call(0, 0, {SINK: rows("0-00", "0-01")}),
    Call(0, 1, {SINK: rows("1-00")}),
    Call(0, 2, {SINK: rows("2-00")}),
]
EXPECTED = Expected(CALLS, [])
ALL = rows("0-00", "0-01", "1-00", "2-00")
RAN = [Event(what, 0, batch) for batch in range(3) for what in ("entered", "completed")]


def refusal(batch: int, text: str = ADVICE) -> Event:
    return Event("called", 0, batch, NAMED, "ConfigurationError", text)


def outcome(seen: Rows, *events: Event, left_open: tuple[str, ...] = ()) -> Outcome:
    return Outcome([*RAN, *events], {SINK: seen}, list(left_open))


def stopped_in(batch: int, seen: Rows, *events: Event) -> Outcome:
    return Outcome([*RAN[: 2 * batch + 1], *events], {SINK: seen})


@pytest.mark.parametrize(
    ("program", "right"),
    [
        (PROGRAM, outcome(ALL)),
        (PROGRAM, outcome(ALL, Event("called", 0, 1, KILLED, "InjectedFault", ""))),
        (replace(PROGRAM, loose=Loose.IDS), outcome(rows("0-00", "0-01", "1-00", "2-00", random="0.3"))),
        (replace(PROGRAM, loose=Loose.ANY), outcome(rows("0-01", "2-00"))),
        (replace(PROGRAM, loose=Loose.SOME, copies=2), outcome(rows("0-00", "0-01", "1-00") + rows("1-00"))),
        (WRONG, stopped_in(1, rows("0-00", "0-01"), refusal(1))),
        (WRONG, stopped_in(1, rows("0-00", "0-01", "1-00"), refusal(1))),
        (WRONG, stopped_in(0, rows(), refusal(0))),
        (STUCK, replace(stopped_in(0, rows(), refusal(0)), left_open=["one.driver is Ongoing"])),
    ],
)
def test_a_correct_outcome_passes(program: Program, right: Outcome) -> None:
    assert judged(program, EXPECTED, right) == []


@pytest.mark.parametrize(
    ("program", "bad", "told"),
    [
        (PROGRAM, outcome(ALL - rows("1-00")), "lost 1 .*1-00"),
        (PROGRAM, outcome(ALL + rows("2-00")), "too many 1 .*2-00"),
        (PROGRAM, outcome(ALL - rows("1-00") + rows("1-00", random="changed")), "lost 1 .*too many 1 .*changed"),
        (PROGRAM, outcome(ALL - rows("1-00") + rows("0-00")), "lost 1 .*1-00.*too many 1 .*0-00"),
        (PROGRAM, outcome(rows()), "lost 4"),
        (PROGRAM, outcome(ALL, left_open=("orders.1.2 is Ongoing",)), "left open: orders.1.2 is Ongoing"),
        (WRONG, outcome(ALL, refusal(1), left_open=("one.driver is Ongoing",)), "left open: one.driver is Ongoing"),
        (STUCK, outcome(ALL, refusal(1), left_open=("orders.1.2 is Ongoing",)), "left open: orders.1.2 is Ongoing"),
        (PROGRAM, outcome(ALL, Event("called", 0, 1, RAW, "TypeError", "an int")), "raw error: .*TypeError: an int"),
        (PROGRAM, outcome(ALL, Event(HUNG, text="thread 1")), "hung"),
        (PROGRAM, stopped_in(1, rows("0-00", "0-01"), refusal(1)), "refused without a mistake"),
        (WRONG, outcome(ALL, refusal(1, "no good")), "an error without advice"),
        (WRONG, outcome(ALL, refusal(1, "the read failed. A write is a call")), "an error without advice"),
        # Half a batch, a batch after the refused one, and a missing batch before the refused one.
        (WRONG, stopped_in(0, rows("0-00"), refusal(0)), "rows: "),
        (WRONG, outcome(rows("0-00", "0-01", "2-00"), refusal(1)), "rows: "),
        (WRONG, stopped_in(1, rows("1-00"), refusal(1)), "rows: "),
        (WRONG, stopped_in(1, ALL, refusal(1)), "rows: "),
        # A mistake that no error named.
        (WRONG, outcome(ALL - rows("1-00")), "lost 1"),
        (replace(PROGRAM, loose=Loose.IDS), outcome(ALL + rows("2-00", random="0.3")), "too many 1"),
        (replace(PROGRAM, loose=Loose.UNION), outcome(ALL - rows("2-00")), "lost 1"),
        (replace(PROGRAM, loose=Loose.SOME), outcome(ALL - rows("2-00")), "lost 1"),
        (replace(PROGRAM, loose=Loose.SOME), outcome(ALL - rows("2-00") + rows("1-00")), "too many 1"),
        (replace(PROGRAM, loose=Loose.ANY), outcome(ALL + rows("2-00")), "too many 1"),
        (replace(PROGRAM, loose=Loose.ANY), outcome(rows("3-00")), "too many 1"),
        # Silence: no batch began, or the first one began, was interrupted, and never began again; and no error says why.
        (PROGRAM, Outcome([], {SINK: rows()}), "lost 4"),
        (WRONG, Outcome([], {SINK: rows()}), "lost 4"),
        (PROGRAM, stopped_in(0, rows("0-00", "0-01")), "lost 2"),
        (WRONG, Outcome([*RAN[:2], refusal(2)], {SINK: rows("0-00", "0-01")}), "lost 2"),
    ],
)
def test_a_wrong_outcome_is_caught(program: Program, bad: Outcome, told: str) -> None:
    wrong = judged(program, EXPECTED, bad)
    assert any(re.search(told, one, re.DOTALL) for one in wrong), wrong


def many(*places: str) -> Expected:
    return Expected([Call(0, 0, {place: rows(*(f"{place}-{number}" for number in range(9))) for place in places})], [])


@pytest.mark.parametrize(
    ("loose", "seen"),
    [
        (Loose.ANY, {"one": rows(), "two": rows()}),
        (
            Loose.UNION,
            {"one": rows(*(f"{place}-{row}" for place in ("one", "two") for row in range(9))), "two": rows()},
        ),
    ],
)
def test_a_random_program_with_many_rows_does_not_leave_a_sink_empty(loose: Loose, seen: dict[str, Rows]) -> None:
    reference = many("one", "two")
    if loose is Loose.ANY:
        reference = Expected([*reference.calls, *(Call(0, 0, call.rows) for call in reference.calls)], [])
    ids: tuple[Row, ...] = tuple({"id": f"{place}-{row}"} for place in ("one", "two") for row in range(9))
    program = replace(PROGRAM, loose=loose, batches=(ids,), sinks=2, copies=2)
    assert judged(program, reference, Outcome(RAN[:2], reference.calls[0].rows)) == []
    assert "instead of" in str(judged(program, reference, Outcome(RAN[:2], seen)))


def test_each_query_has_its_own_batches() -> None:
    calls = [*CALLS, Call(1, 0, {"audit": rows("0-00")})]
    events = [*RAN, Event("entered", 1, 0), Event("called", 1, 0, NAMED, "ConfigurationError", ADVICE)]
    right = Outcome(events, {SINK: ALL, "audit": rows()})
    assert judged(WRONG, Expected(calls, []), right) == []
    lost = Outcome(events, {SINK: ALL - rows("2-00"), "audit": rows()})
    assert "lost 1" in str(judged(WRONG, Expected(calls, []), lost))


def test_a_program_that_fails_on_its_own_may_also_fail_with_the_product() -> None:
    own = Event("function", 0, 2, RAW, "ZeroDivisionError", "division by zero")
    reference = Expected(CALLS[:2], [own])
    assert judged(PROGRAM, reference, stopped_in(2, ALL - rows("2-00"), own)) == []
    assert "raw error" in str(
        judged(PROGRAM, reference, stopped_in(2, ALL - rows("2-00"), replace(own, error="TypeError")))
    )
    assert "lost rows" in str(judged(PROGRAM, reference, outcome(ALL - rows("1-00"))))
    assert judged(PROGRAM, reference, outcome(ALL)) == []
    assert "too many 1" in str(judged(PROGRAM, reference, outcome(ALL + rows("2-00"))))


@pytest.mark.parametrize(
    ("advice", "is_given"),
    [
        ("Nothing was written. Restart the query", True),
        ("To continue with it, call exactly_once() again", True),
        ("two calls: write each batch with one call", True),
        ("If the query is over, delete the checkpoint", True),
        ("The checkpoint is gone.\n  Use a new one", True),
        ("the clocks differ. Synchronize them", True),
        ("The directory is full: move it", True),
        ("the read failed", False),
        ("A start of this query would write the batch again", False),
        ("If the topic is gone, its rows cannot be read", False),
    ],
)
def test_advice_is_an_imperative(advice: str, *, is_given: bool) -> None:
    wrong = judged(WRONG, EXPECTED, outcome(ALL, refusal(1, advice)))
    assert wrong == ([] if is_given else [f"an error without advice: ConfigurationError: {advice}"])


def test_after_an_injected_fault_the_program_is_dead_even_if_it_catches_everything() -> None:
    recorder = Recorder()
    calls = []

    def each(_: object, batch_id: int) -> None:
        calls.append(batch_id)
        raise InjectedFault

    def swallowing(batch: object, batch_id: int) -> None:
        for _ in range(3):
            with contextlib.suppress(Exception):
                Watched(recorder, each)(batch, batch_id)

    with pytest.raises(InjectedFault):
        recorder.function(0, swallowing)(None, 5)  # type: ignore[arg-type]
    assert calls == [5]
    assert [(event.what, event.batch, event.kind) for event in recorder.events] == [
        ("entered", 5, ""),
        ("called", 5, KILLED),
    ]


def cyclic() -> TypeError:
    error = TypeError("its own cause")
    error.__cause__ = error
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (cyclic(), RAW),
        (ConfigurationError("set it"), NAMED),
        (RetriableError("start again"), NAMED),
        (TypeError("int"), RAW),
    ],
)
def test_a_swallowed_error_is_recorded(error: Exception, kind: str) -> None:
    recorder = Recorder()

    def each(*_: object) -> None:
        raise error

    with pytest.raises(type(error)):
        Watched(recorder, each)()
    assert [(event.kind, event.error) for event in recorder.events] == [(kind, type(error).__name__)]


GIVES_UP = """
def function(batch, batch_id):
    try:
        each(batch, batch_id)
    except Exception:
        pass
    {last}
"""


@pytest.mark.parametrize(
    ("error", "last", "kinds"),
    [
        (InjectedFault(), 'raise RuntimeError("gave up")', [KILLED]),
        (InjectedFault(), 'int("x")', [KILLED]),
        (ConfigurationError("set it"), 'raise RuntimeError("gave up")', [NAMED, NAMED]),
        (ConfigurationError("set it"), "fails_elsewhere()", [NAMED, RAW]),
        (KeyError("a"), 'raise RuntimeError("gave up")', [RAW, RAW]),
        (None, 'raise RuntimeError("gave up")', [RAW]),
    ],
)
def test_an_error_that_a_program_raises_after_a_failed_call_counts_as_that_calls_failure(
    error: Exception | None, last: str, kinds: list[str]
) -> None:
    recorder = Recorder()

    def each(*_: object) -> None:
        if error is not None:
            raise error

    def fails_elsewhere() -> None:
        raise KeyError("not raised by the program")

    names = {"each": Watched(recorder, each), "fails_elsewhere": fails_elsewhere}
    exec(compile(GIVES_UP.format(last=last), program_name(1), "exec"), names)  # noqa: S102
    with pytest.raises(Exception):  # noqa: B017, PT011 - the recorder knows which error
        recorder.function(0, names["function"])(None, 0)  # type: ignore[arg-type]
    assert [event.kind for event in recorder.events if event.kind] == kinds
