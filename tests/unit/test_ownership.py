"""Whose sink it is: a start looks at who drove it last before it fences anybody (rules 10 and 11)."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from twopc.batch import Batch, Overrides
from twopc.errors import RefusedStartError
from twopc.ownership import require_same_log_owner, require_same_owner
from twopc.records import Acquired, Begin, LogContents, LogEntry, Record

OURS, THEIRS, THIRD = "query-a", "query-b", "query-c"
CHECKPOINT = Batch(OURS, 0, (), lambda _: None)
LOG, ELSEWHERE = "ledger-s", "ledger-t"


def refused(*, when: bool) -> Any:
    return pytest.raises(RefusedStartError, match="name in use") if when else contextlib.nullcontext()


def taken(query_id: str, deciding_log: str = ELSEWHERE) -> Acquired:
    return Acquired(query_id=query_id, run="r", deciding_log=deciding_log, driver="d", at_ms=0)


def begun(query_id: str) -> Begin:
    return Begin(query_id=query_id, first_batch=0, prior_offsets=())


def start(*records: Record, end_query_id: str | None = None, is_deciding: bool = False) -> None:
    """A query whose one sink has a log with these records; it decides there, or in another log."""
    contents = LogContents(0, tuple(LogEntry(at, record) for at, record in enumerate(records)))
    log: Any = SimpleNamespace(name=LOG, inspect=lambda: contents)
    another: Any = SimpleNamespace(name=ELSEWHERE)
    participants: Any = SimpleNamespace(decision_logs=lambda: [log])
    overrides = Overrides(end_query_id=end_query_id)
    require_same_log_owner(participants, log if is_deciding else another, contents, CHECKPOINT, overrides)


@pytest.mark.parametrize("is_deciding", [True, False])
@pytest.mark.parametrize(
    ("records", "is_refused"),
    [
        ([], False),
        ([taken(OURS)], False),
        ([taken(THEIRS)], True),
        ([taken(OURS), taken(THEIRS)], True),
        ([taken(THEIRS), taken(OURS)], False),
    ],
    ids=["nobody", "this query", "another", "another since", "this one since"],
)
def test_a_sink_that_another_query_drove_last_is_not_taken(
    records: list[Record], *, is_refused: bool, is_deciding: bool
) -> None:
    with refused(when=is_refused):
        start(*records, is_deciding=is_deciding)


@pytest.mark.parametrize(("named", "is_refused"), [(THEIRS, False), (THIRD, True), (OURS, True), (None, True)])
def test_only_an_override_that_names_it_gives_the_sink_away(named: str | None, *, is_refused: bool) -> None:
    with refused(when=is_refused):
        start(taken(THEIRS), end_query_id=named)


@pytest.mark.parametrize("query_id", [OURS, THEIRS])
def test_a_log_that_holds_decisions_of_its_own_is_not_left_for_another_log(query_id: str) -> None:
    """What is in it is not known to who decides elsewhere: its last decision may be uncommitted."""
    with refused(when=True):
        start(taken(query_id, LOG), begun(query_id))
    start(taken(query_id, LOG), begun(query_id), is_deciding=True)  # there the begin record is looked at
    start(taken(query_id, LOG))


@pytest.mark.parametrize(
    ("last", "named", "is_refused"),
    [
        (None, None, False),
        (OURS, None, False),
        (THEIRS, None, True),
        (THEIRS, THEIRS, False),
        (THEIRS, THIRD, True),
    ],
)
def test_a_sink_without_a_log_tells_itself_who_drove_it(
    last: str | None, named: str | None, *, is_refused: bool
) -> None:
    drove = {"nobody's": None, "s": last}
    with refused(when=is_refused):
        require_same_owner(drove, CHECKPOINT, Overrides(end_query_id=named))
