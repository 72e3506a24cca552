"""Decided transactions compared with visible ones."""

from __future__ import annotations

import pytest

from tests.unit.test_log_view import BEGIN, decision, truncation
from twopc.integration.verify.cluster import Bounds
from twopc.integration.verify.findings import Finding, Kind
from twopc.integration.verify.history import BatchId, History, history_of
from twopc.integration.verify.markers import Markers
from twopc.integration.verify.tally import Tally
from twopc.integration.verify.transactions import Decided, check_missing, check_open, check_visible, given_up
from twopc.records import Acquired, Begin, LogContents, LogEntry, Record
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.markers import Marker
from twopc.sinks.kafka.reports import Description

ID = BatchId("a", 4)
LATER = BatchId("a", 5)
SCAN_START = 10
OPEN = Description("NONE", "Ongoing", 7, 0)


def decided(uuid: str = "u", rows: int = 2) -> dict[str, Decided]:
    handle = KafkaHandle(uuid, "s.1.w.0", 7, 0, 3, rows, ("out:0",))
    return {uuid: Decided(ID, 0, handle, SCAN_START)}


def marker(uuid: str, batch: int = 4, rows: int = 2, query_id: str = "a") -> Marker:
    return Marker(uuid=uuid, query_id=query_id, batch_id=batch, attempt=(1, 1), task=0, rows=rows)


def bounds(start: int = SCAN_START, stable: int = 20, end: int = 20) -> Bounds:
    return Bounds({3: start}, {3: stable}, {3: end})


def kept(*records: Record, start: int = 0) -> History:
    contents = log_of(*records, start=start)
    return history_of(contents, contents)


def kinds(found: list[Finding]) -> list[Kind]:
    return [one.kind for one in found]


@pytest.mark.parametrize(
    ("description", "of_partition", "last", "kind"),
    [
        (OPEN, bounds(), ID, Kind.DECIDED_OPEN),
        (Description("NONE", "PrepareCommit", 7, 0), bounds(), ID, Kind.DECIDED_OPEN),
        (OPEN, bounds(), LATER, Kind.DECIDED_LATE),
        (
            Description("NONE", "Ongoing", 7, 1),
            bounds(),
            ID,
            Kind.DECIDED_LOST,
        ),  # another transaction, at a later epoch
        (Description("NONE", "CompleteAbort", 7, 0), bounds(), LATER, Kind.DECIDED_LOST),
        (Description("NONE", "CompleteCommit", 7, 0), bounds(start=SCAN_START + 1), ID, Kind.DECIDED_UNKNOWN),
        (Description("NONE", "CompleteCommit", 7, 0), bounds(end=21), ID, Kind.DECIDED_UNKNOWN),
    ],
)
def test_a_decided_transaction_is_reported_lost_only_with_proof(
    description: Description, of_partition: Bounds, last: BatchId, kind: Kind
) -> None:
    assert kinds(list(check_missing({"u": description}, decided(), of_partition, last))) == [kind]


@pytest.mark.parametrize("last", [ID, LATER])
def test_an_abandoned_batch_is_reported_as_abandoned_and_not_as_lost(last: BatchId) -> None:
    (one,) = decided().values()
    (found,) = check_missing({"u": OPEN}, {"u": one._replace(abandoned=True)}, bounds(), last)
    assert (found.kind, found.is_error) == (Kind.ABANDONED, False)
    assert "override=Abandon(4)" in found.text


@pytest.mark.parametrize(
    ("description", "of_partition", "is_lost"),
    [
        (Description("NONE", "CompleteAbort", 7, 0), bounds(), True),
        (OPEN, bounds(), False),
        (Description("NO_ANSWER"), bounds(), False),
        (Description("NONE", "CompleteCommit", 7, 0), bounds(start=SCAN_START + 1), False),  # its marker was deleted
        (Description("NONE", "CompleteCommit", 7, 0), bounds(end=21), False),
    ],
)
def test_rows_of_an_abandoned_transaction_are_given_up_only_if_it_is_proven_lost(
    *, description: Description, of_partition: Bounds, is_lost: bool
) -> None:
    abandoned = {uuid: one._replace(abandoned=True) for uuid, one in decided().items()}
    assert (given_up({"u": description}, abandoned, of_partition) == {"u"}) is is_lost
    (found,) = check_missing({"u": description}, abandoned, of_partition, ID)
    assert (found.kind, "its rows are lost" in found.text) == (Kind.ABANDONED, is_lost)
    assert not given_up({"u": description}, decided(), of_partition)


@pytest.mark.parametrize("error", ["NO_ANSWER", "TransactionalIdAuthorizationFailedError"])
def test_a_coordinator_that_reports_no_state_proves_no_loss(error: str) -> None:
    assert kinds(list(check_missing({"u": Description(error)}, decided(), bounds(), ID))) == [Kind.DECIDED_UNKNOWN]


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (marker("u"), []),
        (marker("u", rows=3), [Kind.ROWS_DIFFER]),
        (marker("replaced"), [Kind.UNDECIDED_VISIBLE]),
        (marker("nobody's"), [Kind.UNDECIDED_VISIBLE]),
        (marker("nobody's", query_id="unknown"), [Kind.UNDECIDED_VISIBLE]),
    ],
)
def test_a_visible_transaction_must_be_decided_with_the_same_rows(seen: Marker, found: list[Kind]) -> None:
    history = kept(BEGIN, decision(0))
    assert kinds(list(check_visible([seen], decided(), {"replaced": ID}, history))) == found


def driven(query_id: str, log: str, cluster: str = "") -> Acquired:
    return Acquired(query_id=query_id, run="r", deciding_log=log, driver="d", at_ms=0, deciding_cluster=cluster)


def log_of(*records: Record, start: int = 0) -> LogContents:
    return LogContents(start, tuple(LogEntry(start + i, record) for i, record in enumerate(records)))


def test_transactions_decided_in_another_ledger_are_not_compared() -> None:
    """The sink ran alone (query "a"), then in query "b", whose decision log belongs to another sink."""
    own = log_of(driven("a", "own"), BEGIN, decision(0), driven("b", "first"))
    deciding = log_of(driven("b", "first"), Begin(query_id="b", first_batch=0, prior_offsets=()))
    history = history_of(deciding, own)
    seen = [marker("x", batch=0), marker("y", batch=0), marker("z", query_id="b"), marker("w", query_id="unknown")]
    found = list(check_visible(seen, {}, {}, history))
    assert sorted((one.kind.value, one.where) for one in found) == [
        ("not_compared", "query a"),
        ("undecided_visible", "batch 4"),
        ("undecided_visible", "batch 4"),
    ]
    assert "2 visible transactions were decided in own, not in the current decision log" in found[-1].text
    tally = Tally()
    tally.record(history, history, KafkaSink(name="s", bootstrap_servers="b:1", topic="out"), ())
    assert tally.expected().incomplete == "earlier batches were decided in own"


@pytest.mark.parametrize(
    ("clusters", "elsewhere"),
    [(("A", "B"), {"a": "log on cluster A"}), (("A", "A"), {}), (("", "B"), {}), (("A", ""), {})],
)
def test_ledgers_of_the_same_name_are_told_apart_by_their_clusters(
    clusters: tuple[str, str], elsewhere: dict[str, str]
) -> None:
    """An older version did not record the cluster."""
    own = log_of(*(driven(query_id, "log", cluster) for query_id, cluster in zip("ab", clusters, strict=True)))
    assert history_of(log_of(), own).elsewhere == elsewhere


def test_a_query_whose_decisions_may_have_been_truncated_is_not_compared() -> None:
    own = log_of(decision(4), truncation(3), driven("b", "first"), start=3)
    history = history_of(log_of(Begin(query_id="b", first_batch=0, prior_offsets=())), own)
    assert not history.is_complete
    assert not list(check_visible([marker("x", batch=0)], {}, {}, history))


def test_transactions_older_than_the_kept_decisions_are_not_compared() -> None:
    history = kept(decision(4), truncation(3), start=3)
    markers = Markers({"old": marker("old", batch=3), "gone": marker("gone", query_id="z"), "new": marker("new")})
    markers.forget_before(history.batches.keys())
    found = list(check_visible(markers.visible.values(), {}, {}, history))
    assert [(one.kind, one.where, "new" in one.text) for one in found] == [(Kind.UNDECIDED_VISIBLE, "batch 4", True)]


@pytest.mark.parametrize(
    ("tid", "description", "found"),
    [
        ("s.1.w.0", OPEN, []),  # decided: judged by check_missing
        ("s.1.w.0", Description("NONE", "Ongoing", 7, 1), [Kind.ORPHAN_OPEN]),  # its id is in use again
        ("s.1.w.1", OPEN, [Kind.ORPHAN_OPEN]),
        ("s.2.w.1", OPEN, [Kind.RUNNING_OPEN]),
        ("s.2.w.1", Description("NONE", "CompleteCommit", 7, 0), []),
        ("s.driver", OPEN, []),
    ],
)
def test_open_transactions_are_split_into_running_ones_and_orphans(
    tid: str, description: Description, found: list[Kind]
) -> None:
    assert kinds(list(check_open({tid: description}, decided(), driver_epoch=2))) == found
