"""Folding a log into the facts that recovery needs."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from twopc import log_view
from twopc.attempt import Attempt
from twopc.log_view import LogStatus, LogView, fold, fold_more
from twopc.records import Acquired, Begin, Decision, LogContents, LogEntry, Record, Repair, TaskReport, Truncation

BEGIN = Begin(query_id="a", first_batch=0, prior_offsets=())
ACQUIRE = Acquired(query_id="a", run="r", deciding_log="l", driver="d", at_ms=0)


def task(partition: int, **handles: str) -> TaskReport:
    return TaskReport(
        partition=partition, rows=1, checksum=partition, handles={name: {"t": t} for name, t in handles.items()}
    )


def decision(batch: int, *tasks: TaskReport, query_id: str = "a", plan: str = "write") -> Decision:
    return Decision(
        query_id=query_id,
        batch_id=batch,
        attempt=Attempt(0, batch),
        offsets=(f"{query_id}{batch}",),
        tasks=tasks,
        scan_start={},
        kind=plan,
    )


def repair(batch: int, *tasks: TaskReport, query_id: str = "a") -> Repair:
    """The tasks' transactions again."""
    replaces = tuple((sink, task.partition) for task in tasks for sink in task.handles)
    return Repair(query_id=query_id, batch_id=batch, attempt=Attempt(0, 9), tasks=tasks, replaces=replaces)


def truncation(log_start: int, begin: Begin = BEGIN, *ended: str) -> Truncation:
    return Truncation(log_start=log_start, begin=begin, ended=ended)


def view_of(*records: Record, start: int = 0) -> LogView:
    return fold(LogContents(start, tuple(LogEntry(start + i, record) for i, record in enumerate(records))))


def test_an_empty_log_has_no_batch() -> None:
    view = view_of()
    assert (view.status, view.highest_batch, view.highest_offsets) == (LogStatus.UNDECIDED, None, ())


def test_an_acquisition_alone_decides_no_batch() -> None:
    assert view_of(ACQUIRE) == replace(view_of(), acquired=ACQUIRE)


@pytest.mark.parametrize("first_batch", [0, 5])
def test_a_begin_record_counts_as_the_decision_before_its_first_batch(first_batch: int) -> None:
    view = view_of(Begin(query_id="a", first_batch=first_batch, prior_offsets=("p",)))
    assert (view.status, view.highest_batch, view.highest_offsets) == (LogStatus.UNDECIDED, first_batch - 1, ("p",))


def test_the_last_decision_counts() -> None:
    view = view_of(ACQUIRE, BEGIN, decision(0), ACQUIRE, decision(1))
    assert (view.status, view.highest_batch, view.highest_offsets) == (LogStatus.DECIDED, 1, ("a1",))
    assert view.kept == ((2, decision(0).scan_start), (4, decision(1).scan_start))


def test_a_rewritten_batch_replaces_its_decision() -> None:
    view = view_of(BEGIN, decision(0, task(0, s="old")), decision(0, task(0, s="new"), plan="rewrite"))
    assert view.decision is not None
    assert view.decision.tasks == (task(0, s="new"),)


def test_a_repair_replaces_handles_per_task_and_sink() -> None:
    view = view_of(
        BEGIN,
        decision(0, task(0, s="s0", u="u0"), task(1, s="s1")),
        repair(0, task(0, s="s2")),
        repair(0, task(1, s="s3")),
    )
    assert view.status is LogStatus.REPAIRED
    assert view.decision is not None
    assert view.decision.tasks == (task(0, s="s2", u="u0"), task(1, s="s3"))


def test_the_decision_after_a_repair_is_not_repaired() -> None:
    view = view_of(BEGIN, decision(0, task(0, s="x")), repair(0, task(0, s="y")), decision(1))
    assert view.status is LogStatus.DECIDED


@pytest.mark.parametrize(
    "wrong",
    [
        repair(1, task(0, s="y")),
        repair(0, task(0, s="y"), query_id="b"),
        repair(0, task(7, s="y")),
    ],
    ids=["another batch", "another query", "another task"],
)
def test_a_repair_that_does_not_match_the_decision_counts_as_damage(wrong: Repair) -> None:
    view = view_of(BEGIN, decision(0, task(0, s="x")), wrong)
    assert view.status is LogStatus.CORRUPT
    assert "repair record at offset 2" in str(view.damage)


def test_a_repair_without_a_decision_counts_as_damage() -> None:
    assert view_of(BEGIN, repair(0)).status is LogStatus.CORRUPT


@pytest.mark.parametrize("wrong", [decision(3), decision(6), decision(5, query_id="b")])
def test_a_decision_out_of_sequence_counts_as_damage(wrong: Decision) -> None:
    view = view_of(Begin(query_id="a", first_batch=3, prior_offsets=()), decision(3), decision(4), wrong)
    assert view.status is LogStatus.CORRUPT
    assert "does not follow the decision for batch 4" in str(view.damage)


@pytest.mark.parametrize("wrong", [decision(2), decision(4), decision(3, query_id="b")])
def test_a_first_decision_other_than_the_begin_records_first_batch_counts_as_damage(wrong: Decision) -> None:
    begin = Begin(query_id="a", first_batch=3, prior_offsets=())
    assert view_of(begin, decision(3)).damage is None
    assert view_of(begin, wrong).status is LogStatus.CORRUPT


def test_a_new_query_ends_the_old_one_and_starts_without_a_decision() -> None:
    view = view_of(BEGIN, decision(0), Begin(query_id="b", first_batch=0, prior_offsets=(), ends="a"))
    assert (view.ended, view.decision, view.highest_batch) == (frozenset({"a"}), None, -1)


# -- truncation --------------------------------------------------------------------------------------------------------


def test_a_log_that_starts_at_its_recorded_truncation_is_undamaged() -> None:
    view = view_of(decision(6), decision(7), truncation(10, BEGIN, "z"), start=10)
    assert view.damage is None
    assert (view.begin, view.ended, view.highest_batch) == (BEGIN, frozenset({"z"}), 7)


@pytest.mark.parametrize("start", [1, 10, 11])
def test_a_log_that_starts_above_its_last_recorded_truncation_counts_as_damage(start: int) -> None:
    assert view_of(decision(7), start=start).status is LogStatus.CORRUPT
    view = fold(LogContents(start + 10, (LogEntry(start + 10, truncation(start + 9)),)))
    assert view.status is LogStatus.CORRUPT


def test_a_log_that_lost_every_record_counts_as_damage() -> None:
    assert fold(LogContents(12, ())).status is LogStatus.CORRUPT


def test_records_below_a_recorded_truncation_are_ignored_even_if_still_stored() -> None:
    records: list[Record] = [BEGIN, decision(0), decision(1), decision(2), truncation(2)]
    entries = tuple(LogEntry(offset, record) for offset, record in enumerate(records))
    views = [fold(LogContents(start, entries[start:])) for start in range(3)]
    assert views[0] == views[1] == views[2]
    assert [offset for offset, _ in views[0].kept] == [2, 3]


def test_an_interrupted_truncation_does_no_damage() -> None:
    """The records left below it may refer to dropped ones."""
    view = view_of(repair(0, task(0, s="y")), decision(1), truncation(2), start=1)
    assert (view.damage, view.highest_batch) == (None, 1)


def test_the_highest_truncation_applies() -> None:
    records: list[Record] = [BEGIN, decision(0), decision(1), truncation(1), decision(2), truncation(4)]
    view = view_of(*records)
    assert [offset for offset, _ in view.kept] == [4]
    assert view.highest_batch == 2


def test_a_query_begun_after_a_truncation_stays_the_current_one() -> None:
    other = Begin(query_id="b", first_batch=0, prior_offsets=(), ends="a")
    view = view_of(BEGIN, decision(0), truncation(1), other, decision(0, query_id="b"))
    assert view.begin == other
    assert view.ended == {"a"}


def test_appended_records_lead_to_the_same_view_as_if_they_were_read() -> None:
    first: list[Record] = [BEGIN, decision(0, task(0, s="x"))]
    view = fold_more(view_of(), 1, first)
    view = fold_more(view, 2, [repair(0, task(0, s="y"))])
    view = fold_more(view, 3, [decision(1)])
    view = fold_more(view, 4, [truncation(2)])
    entries = [LogEntry(1, record) for record in first]
    entries += [
        LogEntry(2, repair(0, task(0, s="y"))),
        LogEntry(3, decision(1)),
        LogEntry(4, truncation(2)),
    ]
    read = fold(LogContents(0, (*entries[:2], *entries[2:4])))
    assert (view.decision, view.begin, view.status) == (read.decision, read.begin, read.status)
    assert [offset for offset, _ in view.kept] == [3]


def test_a_long_log_is_read_without_copying_its_decisions_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``minBatchesToRetain=100000``, such copies took minutes at each start."""
    copied = 0

    def replaced(view: LogView, **changes: Any) -> LogView:
        nonlocal copied
        copied += len(changes.get("kept", ()))
        return replace(view, **changes)

    monkeypatch.setattr(log_view, "replace", replaced)
    view = view_of(BEGIN, *(decision(batch) for batch in range(500)), truncation(101))
    assert [offset for offset, _ in view.kept] == list(range(101, 501))
    assert copied <= 500


def test_only_the_parts_of_older_decisions_that_a_truncation_needs_are_held() -> None:
    """A decision of 5000 tasks is some MB, and 200 of them are held before a truncation."""
    older = decision(0, *(task(number, s="a handle") for number in range(100)))
    view = view_of(BEGIN, older, decision(1))
    held = {id(found) for found in reachable(view)}
    assert id(older.tasks) not in held
    assert id(older.scan_start) in held


def reachable(view: LogView) -> list[object]:
    """The view and everything that it refers to, except classes."""
    found: dict[int, object] = {}
    ahead: list[object] = [view]
    while ahead:
        one = ahead.pop()
        if id(one) not in found and not isinstance(one, type):
            found[id(one)] = one
            ahead.extend(gc.get_referents(one))
    return list(found.values())
