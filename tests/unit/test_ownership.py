"""A start checks which query drove the sink last before it fences any driver (rules 10 and 11)."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from twopc.batch import Batch
from twopc.errors import RefusedStartError
from twopc.log_view import fold
from twopc.override import Overrides
from twopc.ownership import require_same_log_owner, require_same_owner
from twopc.records import Acquired, Begin, LogContents, LogEntry, Record
from twopc.registers import RegisterLog
from twopc.settings import Settings

OURS, THEIRS, THIRD = "query-a", "query-b", "query-c"
CHECKPOINT = Batch(OURS, 0, (), lambda _: None)
LOG, ELSEWHERE = "ledger-s", "ledger-t"
CLUSTER, ANOTHER = "cluster-1", "cluster-2"


def refused(*, when: bool) -> Any:
    return (
        pytest.raises(RefusedStartError, check=lambda error: error.case == "name in use")
        if when
        else contextlib.nullcontext()
    )


def acquired(query_id: str, deciding_log: str = ELSEWHERE, deciding_cluster: str = "") -> Acquired:
    log: Any = {"deciding_log": deciding_log, "deciding_cluster": deciding_cluster}
    return Acquired(query_id=query_id, run="r", driver="d", at_ms=0, **log)


def begun(query_id: str) -> Begin:
    return Begin(query_id=query_id, first_batch=0, prior_offsets=())


def setup(end_query_id: str | None, participants: Any = None, log: Any = None) -> Any:
    settings = Settings(overrides=Overrides(end_query_id=end_query_id))
    return SimpleNamespace(settings=settings, participants=participants, log=log)


def start(*records: Record, end_query_id: str | None = None, is_deciding: bool = False) -> None:
    """Start a query whose only sink has a log with these records; it decides there or in another log."""
    contents = LogContents(0, tuple(LogEntry(at, record) for at, record in enumerate(records)))
    log: Any = SimpleNamespace(name=LOG, cluster=CLUSTER, inspect=lambda: contents)
    another: Any = SimpleNamespace(name=ELSEWHERE)
    participants: Any = SimpleNamespace(decision_logs=lambda: [log])
    require_same_log_owner(
        setup(end_query_id, participants, log if is_deciding else another), fold(contents), CHECKPOINT
    )


@pytest.mark.parametrize("is_deciding", [True, False])
@pytest.mark.parametrize(
    ("records", "is_refused"),
    [
        ([], False),
        ([acquired(OURS)], False),
        ([acquired(THEIRS)], True),
        ([acquired(OURS), acquired(THEIRS)], True),
        ([acquired(THEIRS), acquired(OURS)], False),
    ],
    ids=["nobody", "this query", "another", "another since", "this one since"],
)
def test_a_sink_last_driven_by_another_query_is_refused(
    records: list[Record], *, is_refused: bool, is_deciding: bool
) -> None:
    with refused(when=is_refused):
        start(*records, is_deciding=is_deciding)


@pytest.mark.parametrize(("named", "is_refused"), [(THEIRS, False), (THIRD, True), (OURS, True), (None, True)])
def test_only_end_query_id_with_the_last_owners_id_releases_a_sink(named: str | None, *, is_refused: bool) -> None:
    with refused(when=is_refused):
        start(acquired(THEIRS), end_query_id=named)


@pytest.mark.parametrize("query_id", [OURS, THEIRS])
def test_a_log_with_decisions_cannot_be_replaced_by_another_log(query_id: str) -> None:
    """A driver that decides elsewhere does not read it; its last decision may be uncommitted."""
    with refused(when=True):
        start(acquired(query_id, LOG), begun(query_id))
    start(acquired(query_id, LOG), begun(query_id), is_deciding=True)  # here the start checks the begin record
    start(acquired(query_id, LOG))


@pytest.mark.parametrize(("cluster", "is_refused"), [(CLUSTER, False), ("", False), (ANOTHER, True)])
def test_a_log_with_the_same_name_on_another_cluster_counts_as_another_log(cluster: str, *, is_refused: bool) -> None:
    """Its decisions are not in the sink's own log, so a start that only reads this log would sweep what is decided."""
    with refused(when=is_refused):
        start(acquired(THEIRS, LOG, cluster), is_deciding=True)


def test_a_log_named_like_the_one_in_a_checkpoint_does_not_contain_that_checkpoints_decisions() -> None:
    """Decisions in a checkpoint are on no cluster. A start that took them for this log's would find none, and sweep."""
    contents = LogContents(0, (LogEntry(0, acquired(THEIRS, RegisterLog.name)),))
    log: Any = SimpleNamespace(name=RegisterLog.name, cluster=CLUSTER, inspect=lambda: contents)
    participants: Any = SimpleNamespace(decision_logs=lambda: [log])
    with refused(when=True):
        require_same_log_owner(setup(None, participants, log), fold(contents), CHECKPOINT)


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
def test_a_sink_without_a_log_stores_its_last_owner_itself(
    last: str | None, named: str | None, *, is_refused: bool
) -> None:
    drove = {"nobody's": None, "s": last}
    with refused(when=is_refused):
        require_same_owner(setup(named), drove, CHECKPOINT)
