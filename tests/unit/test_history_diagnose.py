"""Every rule of ``twopc diagnose`` holds for a history of its kind, and not for one that only looks like it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.history_support import ended, failed, vote
from twopc.integration.history.diagnose import RULES, Diagnosis, diagnose
from twopc.integration.history.reader import History
from twopc.progress import Cause, StateSize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.progress import Checkpoint

PHASES = {"prepare": 300.0, "confirm": 10.0, "decide": 30.0, "commit": 40.0, "finish": 20.0}


def _slow(**phases: float) -> dict[str, Any]:
    changed = {**PHASES, **phases}
    return {"phases": changed, "took_ms": sum(changed.values())}


def _many(count: int = 12, **changed: Any) -> list[Checkpoint]:
    return [ended(number, **changed) for number in range(count)]


def _then(error: str, message: str, reason: str = "failed", *, since: int = 0) -> list[Checkpoint]:
    return [*_many(5), failed(5, error, message, reason), *[ended(number) for number in range(5, 5 + since)]]


def _tasks(count: int, rows: int, slowest: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {"tasks": count, "rows": rows, "slowest": (vote(**slowest),), **changed}


def _state(commit_ms: int) -> StateSize:
    return StateSize(operator="stateStoreSave", rows=5_000_000, memory_bytes=900_000_000, commit_ms=commit_ms)


FLUSHING = {"took_ms": 4_000.0, "read_ms": 300.0, "flush_ms": 3_500.0}
READING = {"took_ms": 4_000.0, "read_ms": 3_600.0, "flush_ms": 200.0}
READS_SLOWLY: dict[str, Any] = {**_slow(prepare=4_100.0), "slowest": (vote(**READING),), "median_ms": 3_900.0}
HIDDEN: dict[str, Any] = {"tasks": 2, "slowest": (vote(took_ms=57.8, read_ms=0.4, flush_ms=45.4),), "median_ms": 41.4}
BEHIND = {"took_ms": 9_000.0, "read_ms": 2_000.0, "flush_ms": 2_000.0}


@dataclass(frozen=True)
class Case:
    """A rule's name, a history for which it holds, and its look-alikes, for which it does not."""

    rule: str
    of_its_kind: list[Checkpoint]
    alike: tuple[list[Checkpoint], ...]


CASES = [
    Case(
        "slow checkpoint directory",
        _many(took_ms=2_600.0),
        (  # quick enough; within a phase; other attempts
            _many(took_ms=850.0),
            _many(**_slow(prepare=2_500.0)),
            _many(took_ms=2_600.0, failed_attempts=(Cause(reason="failed", phase="prepare", error="E", message="m"),)),
        ),
    ),
    Case(
        "bad record",
        _then("BadRecordError", "task 1: a record is larger than the topic allows", "declined"),
        (_then("RetriableError", "task 1: the broker is full"),),
    ),
    Case(
        "user code",
        _then("PythonException", "ValueError: invalid literal for int()"),
        (_then("BadRecordError", "task 1: the row has no key", "declined"),),
    ),
    Case(
        "memory",
        _then("Py4JJavaError", "Job aborted: ExecutorLostFailure (executor 1 exited): exit code 137"),
        (_then("Py4JJavaError", "Job aborted: FetchFailed"),),
    ),
    Case(
        "memory",
        _then("Py4JJavaError", "org.apache.arrow.vector.util.OversizedAllocationException: Memory required … exceeds"),
        (),
    ),
    Case(
        "unavailable",
        _then("UnavailableError", "task 0: write to t: Local: Message timed out (_MSG_TIMED_OUT)", "declined"),
        (_then("RetriableError", "the transaction is Dead, not Ongoing"),),
    ),
    Case(
        "expired",
        _then("CheckpointExpiredError", "batch 5 was cancelled", "expired"),
        (_then("RetriableError", "a request was cancelled"), _many(**_slow(prepare=200_000.0))),
    ),
    Case(
        "in doubt",
        _then("CommitBlockedError", "batch 5 is decided, and its commit is not proven"),
        (_then("RetriableError", "nothing is decided"),),
    ),
    Case("lost transactions", [*_many(5), ended(5, steps=("rewrite",))], (_many(5),)),
    Case("two drivers", _then("FencedError", "a newer driver owns this sink"), (_then("RetriableError", "fenced"),)),
    Case(
        "wrong checkpoint",
        _then("RefusedStartError", "checkpoint rewound"),
        (_then("RetriableError", "a broker was away"),),
    ),
    Case(
        "restarts",
        [failed(7, "FatalError", "no", run_id=str(run)) for run in range(5)],
        (
            [ended(run, run_id=str(run)) for run in range(8)],
            [*[ended(number, run_id=str(number % 5)) for number in range(30)], failed(30, "FatalError", "no")],
            _then("FatalError", "no", since=10),
        ),
    ),
    Case(
        "slow decision",
        _many(**_slow(decide=2_000.0)),
        (_many(**_slow(decide=300.0)), _many(**_slow(decide=700.0, prepare=9e3))),
    ),
    Case(
        "slow commit",
        _many(**_slow(commit=2_000.0)),
        (_many(**_slow(commit=300.0)), _many(**_slow(commit=900.0, prepare=9e3))),
    ),
    Case("slow confirmation", _many(**_slow(confirm=2_000.0)), (_many(**_slow(confirm=300.0)),)),
    Case(
        "slow flush",
        _many(**_slow(prepare=4_100.0), slowest=(vote(**FLUSHING),), median_ms=3_900.0),
        (
            _many(**_slow(prepare=4_100.0), slowest=(vote(**READING),), median_ms=3_900.0),
            _many(**_slow(prepare=8_000.0), slowest=(vote(took_ms=7_900.0, read_ms=7_000.0, flush_ms=600.0),)),
            _many(slowest=(vote(flush_ms=250.0),)),
        ),
    ),
    Case(
        "slow plan",
        _many(**_slow(prepare=4_100.0), slowest=(vote(**READING),), median_ms=3_900.0),
        (
            _many(**_slow(prepare=4_100.0), slowest=(vote(**FLUSHING),), median_ms=3_900.0),
            _many(**_slow(prepare=8_000.0), slowest=(vote(took_ms=7_900.0, read_ms=1_200.0, flush_ms=6_000.0),)),
            _many(**_slow(prepare=4_100.0), way="direct", tasks=1, slowest=(vote(**FLUSHING),), median_ms=4_000.0),
        ),
    ),
    Case(
        "large state",
        _many(**READS_SLOWLY, state=(_state(10_000),)),
        (
            _many(**READS_SLOWLY, state=(_state(400),)),
            _many(**READS_SLOWLY, state=(_state(3_000),)),
            _many(**READS_SLOWLY),
            _many(median_ms=280.0, state=(_state(900),)),
            _many(**_slow(prepare=4_100.0), way="direct", tasks=1, slowest=(vote(**READING),), state=(_state(10_000),)),
            # As in a real query: the commit was over before the tasks' Python processes were ready.
            _many(**_slow(prepare=1_100.0), **HIDDEN, state=(_state(317),)),
            # A record describes the state that the previous batch left. That batch was slow in another run, or before
            # the window.
            [ended(0, **READS_SLOWLY, state=(_state(10_000),)), ended(1, **READS_SLOWLY, state=(_state(400),))],
            [ended(0, **READS_SLOWLY), ended(1, **READS_SLOWLY, state=(_state(10_000),), run_id="another")],
        ),
    ),
    Case(
        "skew",
        _many(**_slow(prepare=9_100.0), **_tasks(4, 40_000, {**BEHIND, "rows": 34_000})),
        (
            _many(**_slow(prepare=9_100.0), **_tasks(4, 40_000, {**BEHIND, "rows": 10_100})),
            _many(**_slow(prepare=9_100.0), **_tasks(4, 40_000, {**BEHIND, "rows": 34_000}, median_ms=8_500.0)),
            [*_many(9), *_many(3, **_slow(prepare=9_100.0), **_tasks(4, 40_000, {**BEHIND, "rows": 34_000}))],
        ),
    ),
    Case(
        "slow host",
        _many(**_slow(prepare=9_100.0), **_tasks(4, 40_000, {**BEHIND, "rows": 10_100, "host": "b"})),
        (_many(**_slow(prepare=9_100.0), **_tasks(4, 40_000, {**BEHIND, "rows": 34_000})),),
    ),
    Case(
        "too many tasks",
        _many(**_slow(prepare=3_000.0), tasks=200, rows=20_000),
        (
            _many(**_slow(prepare=3_000.0), tasks=200, rows=2_000_000),
            _many(**_slow(prepare=300.0), tasks=200, rows=20_000),
            _many(**_slow(prepare=3_000.0), tasks=4, rows=400),
        ),
    ),
    Case(
        "limit near",
        [*_many(9), ended(9, **_slow(prepare=400_000.0))],
        ([*_many(9), ended(9, **_slow(prepare=400_000.0), limit_ms=None)], _many(**_slow(commit=400_000.0))),
    ),
    Case(
        "falling behind",
        [ended(number, pause_ms=20.0, planned=1_000 * (number + 1)) for number in range(12)],
        (
            [ended(number, pause_ms=4_000.0, planned=1_000 * (number + 1)) for number in range(12)],
            [ended(number, pause_ms=20.0, planned=1_000) for number in range(12)],
            [ended(number, pause_ms=20.0, planned=1_000 + 20 * number) for number in range(12)],
            [ended(number, pause_ms=20.0, planned=1_000 * (12 - number)) for number in range(12)],
        ),
    ),
]


def _found(checkpoints: Iterable[Checkpoint]) -> list[Diagnosis]:
    return diagnose(History("/checkpoint", tuple(checkpoints)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_the_rule_for_a_kind_of_case_is_reported_first(case: Case) -> None:
    assert next(one.rule for one in _found(case.of_its_kind)) == case.rule


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_does_not_apply_to_cases_that_are_merely_similar(case: Case) -> None:
    for alike in case.alike:
        assert case.rule not in {one.rule for one in _found(alike)}


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_healthy_history_has_no_finding() -> None:
    assert _found(_many()) == []
    assert _found([]) == []


def test_a_failed_attempt_counts_even_if_a_later_attempt_succeeds() -> None:
    cause = Cause(reason="declined", phase="prepare", error="UnavailableError", message="no answer")
    (found,) = _found([*_many(5), ended(5, failed_attempts=(cause,))])
    assert found.rule == "unavailable"


@pytest.mark.parametrize(
    "text", ["KafkaError{code=_TRANSPORT,val=-195}", "_ALL_BROKERS_DOWN", "Local: Message timed out"]
)
def test_an_error_of_any_class_counts_if_it_contains_a_clients_words_for_a_silent_broker(text: str) -> None:
    found = _found([*_many(5), *_then("CommitBlockedError", f"the commit was not answered: {text}")])
    assert "unavailable" in [one.rule for one in found]


def test_a_failure_long_ago_weighs_less_than_a_current_slowdown() -> None:
    slow = [ended(number, **_slow(decide=2_000.0)) for number in range(6, 40)]
    found = _found([*_then("FatalError", "Connection refused"), *slow])
    assert [one.rule for one in found] == ["slow decision", "unavailable"]
    assert "34 checkpoints completed since" in found[1].evidence


def test_checkpoints_that_left_the_window_are_forgotten() -> None:
    assert _found([*_then("FencedError", "a newer driver"), *[ended(number) for number in range(6, 60)]]) == []


def test_a_large_state_is_detected_if_many_tasks_take_turns_and_the_last_record_contains_no_state() -> None:
    turns = {"tasks": 200, "median_ms": 130.0, "slowest": (vote(took_ms=140.0, read_ms=110.0, flush_ms=10.0),)}
    found = _found([*_many(9, **_slow(prepare=4_000.0), **turns, state=(_state(20_000),)), ended(9)])
    assert "large state" in [one.rule for one in found]
    assert "77% of the prepare phase; stateStoreSave holds 5,000,000 rows, 900 MB" in found[0].evidence


def test_a_large_state_is_detected_even_if_the_tasks_do_not_see_it() -> None:
    found = _found(_many(**_slow(prepare=3_500.0), **HIDDEN, state=(_state(6_000),)))
    assert [one.rule for one in found] == ["large state"]
