"""Decided transactions against visible ones, as pure comparisons."""

from __future__ import annotations

import pytest

from integration.verify.cluster import Bounds
from integration.verify.decided import Decided
from integration.verify.findings import Finding, Kind
from integration.verify.history import BatchId, History, history_of
from integration.verify.markers import Markers
from integration.verify.transactions import check_missing, check_open, check_visible
from sinks.kafka_markers import Marker
from sinks.kafka_transactions import Description
from sinks.kafka_writer import KafkaHandle
from tests.unit.test_log_view import BEGIN, decision, truncation
from twopc.decision import LogContents, LogEntry, Record

ID = BatchId("a", 4)
LATER = BatchId("a", 5)
SINCE = 10
OPEN = Description("NONE", "Ongoing", 7, 0)


def decided(uuid: str = "u", rows: int = 2) -> dict[str, Decided]:
    handle = KafkaHandle(uuid, "s.1.w.0", 7, 0, 3, rows, ("out:0",))
    return {uuid: Decided(ID, 0, handle, SINCE)}


def marker(uuid: str, batch: int = 4, rows: int = 2, lineage: str = "a") -> Marker:
    return Marker(uuid=uuid, lineage=lineage, batch=batch, attempt=(1, 1), task=0, rows=rows)


def bounds(start: int = SINCE, stable: int = 20, end: int = 20) -> Bounds:
    return Bounds({3: start}, {3: stable}, {3: end})


def kept(*records: Record, start: int = 0) -> History:
    contents = LogContents(start, tuple(LogEntry(start + i, record) for i, record in enumerate(records)))
    return history_of(contents, contents)


def kinds(found: list[Finding]) -> list[Kind]:
    return [one.kind for one in found]


@pytest.mark.parametrize(
    ("description", "of_partition", "last", "kind"),
    [
        (OPEN, bounds(), ID, Kind.DECIDED_OPEN),
        (Description("NONE", "PrepareCommit", 7, 0), bounds(), ID, Kind.DECIDED_OPEN),
        (OPEN, bounds(), LATER, Kind.DECIDED_LATE),
        (Description("NONE", "Ongoing", 7, 1), bounds(), ID, Kind.DECIDED_LOST),  # another one, at a later epoch
        (Description("NONE", "CompleteAbort", 7, 0), bounds(), LATER, Kind.DECIDED_LOST),
        (Description("NONE", "CompleteCommit", 7, 0), bounds(start=SINCE + 1), ID, Kind.DECIDED_UNKNOWN),
        (Description("NONE", "CompleteCommit", 7, 0), bounds(end=21), ID, Kind.DECIDED_UNKNOWN),
    ],
)
def test_a_decided_transaction_that_is_not_visible_is_judged_by_proof_only(
    description: Description, of_partition: Bounds, last: BatchId, kind: Kind
) -> None:
    assert kinds(list(check_missing({"u": description}, decided(), of_partition, last))) == [kind]


def test_a_coordinator_that_does_not_answer_proves_no_loss() -> None:
    assert kinds(list(check_missing({"u": Description("NO_ANSWER")}, decided(), bounds(), ID))) == [
        Kind.DECIDED_UNKNOWN
    ]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (marker("u"), []),
        (marker("u", rows=3), [Kind.ROWS_DIFFER]),
        (marker("replaced"), [Kind.UNDECIDED_VISIBLE]),
        (marker("nobody's"), [Kind.UNDECIDED_VISIBLE]),
        (marker("nobody's", lineage="unheard of"), [Kind.UNDECIDED_VISIBLE]),
    ],
)
def test_what_is_visible_must_be_decided_with_these_rows(seen: Marker, found: list[Kind]) -> None:
    history = kept(BEGIN, decision(0))
    assert kinds(list(check_visible([seen], decided(), {"replaced": ID}, history))) == found


def test_what_is_older_than_the_kept_decisions_is_not_judged() -> None:
    history = kept(decision(4), truncation(3), start=3)
    markers = Markers({"old": marker("old", batch=3), "gone": marker("gone", lineage="z"), "new": marker("new")})
    markers.forget(history.batches.keys())
    found = list(check_visible(markers.visible.values(), {}, {}, history))
    assert [(one.kind, one.where, "new" in one.text) for one in found] == [(Kind.UNDECIDED_VISIBLE, "batch 4", True)]


@pytest.mark.parametrize(
    ("tid", "description", "found"),
    [
        ("s.1.w.0", OPEN, []),  # decided, and check_missing's
        ("s.1.w.0", Description("NONE", "Ongoing", 7, 1), [Kind.ORPHAN_OPEN]),  # its id is in use again
        ("s.1.w.1", OPEN, [Kind.ORPHAN_OPEN]),
        ("s.2.w.1", OPEN, [Kind.RUNNING_OPEN]),
        ("s.2.w.1", Description("NONE", "CompleteCommit", 7, 0), []),
        ("s.driver", OPEN, []),
    ],
)
def test_an_open_transaction_that_nobody_decided_is_a_former_drivers_or_the_present_ones(
    tid: str, description: Description, found: list[Kind]
) -> None:
    assert kinds(list(check_open({tid: description}, decided(), incarnation=2))) == found
