"""Observing a store while its query runs: a finding counts only if a second look confirms it. These tests need no server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_control import FIRST, SECOND, Markers, Store
from twopc import control
from twopc.attempt import Attempt, Claim, Evidence, Owner
from twopc.errors import ConfigurationError, UnavailableError
from twopc.fenced_committer import Prepared
from twopc.files import LocalFiles
from twopc.integration.operate.checkpoint import CheckpointState
from twopc.integration.operate.stores import log_of, observe_store
from twopc.integration.verify.history import Batch, BatchId, History
from twopc.log_view import LogView
from twopc.records import Begin, Decision, TaskReport
from twopc.registers import RegisterLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from twopc.sinks.kafka import KafkaSink

QUERY = FIRST.query_id


class Sink:
    """What a look needs of a sink. ``meddle`` runs before each look at the store."""

    name = "s"

    def __init__(self, store: Store, meddle: Callable[[], object] = lambda: None) -> None:
        self.store = store
        self.markers: dict[str, Evidence] = {}
        self.meddle = meddle
        self.looks = 0

    def decode_handle(self, encoded: dict[str, Any]) -> Prepared:
        return Prepared(**encoded)

    def create_committer(self) -> Markers:
        self.looks += 1
        self.meddle()
        committer = Markers(self.store, list)
        committer.markers = self.markers
        return committer


class Log:
    """The decisions of a query in this process."""

    def __init__(self) -> None:
        self.view = LogView(begin=Begin(query_id=QUERY, first_batch=0, prior_offsets=()))
        self.batches: dict[BatchId, Batch] = {}

    def decide(self, batch: int, scan_start: dict[str, Any], *names: str) -> None:
        tasks = tuple(
            TaskReport(partition=at, rows=1, checksum=0, handles={"s": {"transaction": name, "rows": 1}})
            for at, name in enumerate(names)
        )
        decision = Decision(
            query_id=QUERY, batch_id=batch, attempt=Attempt(0, 1), offsets=(), tasks=tasks, scan_start={"s": scan_start}
        )
        self.view = replace(self.view, decision=decision, kept=(*self.view.kept, (batch, decision.scan_start)))
        self.batches[BatchId(QUERY, batch)] = Batch(decision, None)

    def read(self) -> History:
        return History(self.view, self.batches, {}, is_complete=True)


def checkpoint(store: Store) -> CheckpointState:
    sinks = {"s": {"id": store.record.id}}
    return CheckpointState(location="c", query_id=QUERY, planned=0, finished=0, log="registers", sinks=sinks)


def anchors(sink: Sink, log: Log) -> list[str]:
    _, advice = observe_store(sink, checkpoint(sink.store), log.read)  # type: ignore[arg-type]
    return [one.anchor for one in advice]


@pytest.fixture
def sink() -> Sink:
    return Sink(Store())


@pytest.fixture
def owner(sink: Sink) -> Markers:
    """A running driver."""
    committer = Markers(sink.store, list)
    committer.markers = sink.markers
    committer.acquire(FIRST, committer.inspect())
    return committer


def publish(owner: Markers, log: Log, batch: int) -> None:
    scan_start = owner.begin_attempt()
    log.decide(batch, scan_start, f"s-{batch}")
    owner.commit([Prepared(f"s-{batch}", 1)], scan_start)


def test_a_batch_that_is_decided_and_published_between_two_looks_is_no_finding(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    batches = iter([1, 2])

    def run_on() -> None:  # the log was read just before
        if (batch := next(batches, None)) is not None:
            publish(owner, log, batch)

    sink.meddle = run_on
    assert anchors(sink, log) == ["healthy"]
    assert sink.looks == 3


def test_a_store_that_stays_ahead_is_a_finding(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    older = log.view
    publish(owner, log, 1)
    log.view = older
    assert anchors(sink, log) == ["the-start-is-refused"]
    assert sink.looks == 2


def test_a_look_changes_neither_the_record_nor_a_marker(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    log.decide(1, owner.begin_attempt(), "s-1")
    before = (sink.store.held, dict(sink.markers))
    assert anchors(sink, log) == ["decided-and-not-published"]
    assert (sink.store.held, sink.markers) == before


def test_a_sink_that_joined_after_the_newest_decision_is_not_compared_with_it(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    view = log.view
    assert view.decision is not None
    log.view = replace(view, kept=((0, {"other": {}}),))
    assert anchors(sink, log) == ["healthy"]


def test_a_new_query_has_none_of_the_decisions_of_the_query_that_it_ended(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    successor = Markers(sink.store, list)
    successor.acquire(SECOND, Owner(QUERY, 1))
    begin = Begin(query_id=SECOND.query_id, first_batch=0, prior_offsets=(), ends=QUERY)
    log.view = replace(log.view, begin=begin, decision=None)
    found = replace(checkpoint(sink.store), query_id=SECOND.query_id)
    state, [advice] = observe_store(sink, found, log.read)  # type: ignore[arg-type]
    assert (state.batch, advice.anchor) == (None, "healthy")


def test_decisions_that_cannot_be_read_are_not_compared(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    for read in (None, lambda: History(LogView(damage="torn"), {}, {}, is_complete=False)):
        state, [advice] = observe_store(sink, checkpoint(sink.store), read)  # type: ignore[arg-type]
        assert (state.is_known, advice.anchor) == (False, "the-stores-of-sinks")


@pytest.mark.parametrize(
    ("error", "anchor"),
    [
        (UnavailableError("no answer"), "a-store-does-not-answer"),
        (ConfigurationError("somebody else's"), "the-control-record-is-missing-or-unreadable"),
    ],
)
def test_a_store_that_cannot_be_read_is_looked_at_once(
    sink: Sink, owner: Markers, monkeypatch: pytest.MonkeyPatch, error: Exception, anchor: str
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    found = checkpoint(sink.store)
    monkeypatch.setattr(Markers, "load", fail)
    state, [advice] = observe_store(sink, found, Log().read)  # type: ignore[arg-type]
    assert (advice.anchor, state.problem, sink.looks) == (anchor, str(error), 1)
    del owner


def test_a_handle_of_another_kind_is_named(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)

    class Strict(Sink):
        def decode_handle(self, encoded: dict[str, Any]) -> Prepared:
            import msgspec  # noqa: PLC0415 - only here

            return msgspec.convert({"file": encoded}, Prepared)

    state, [advice] = observe_store(Strict(sink.store), checkpoint(sink.store), log.read)  # type: ignore[arg-type]
    assert advice.anchor == "the-control-record-is-missing-or-unreadable" and "another version" in str(state.problem)


class Ledger:
    """A Kafka sink whose decision log is in a directory."""

    def __init__(self, ledger: str, directory: Path) -> None:
        self.ledger, self.directory = ledger, directory

    def create_decision_log(self) -> RegisterLog:
        return RegisterLog(LocalFiles(self.directory))


def test_the_decisions_are_read_where_the_checkpoint_is_bound(tmp_path: Path) -> None:
    found = CheckpointState(location=str(tmp_path), query_id="q", planned=0, finished=0, log="registers", sinks={})
    for name in ("twopc", "ledger"):
        log = RegisterLog(LocalFiles(tmp_path / name))
        log.acquire(Claim("q", name, "registers"))

    def owner(state: CheckpointState, *kafka: Ledger) -> str | None:
        sinks: Sequence[KafkaSink] = kafka  # type: ignore[assignment]
        read = log_of(state, sinks)
        if read is None:
            return None
        acquired = read().view.acquired
        return acquired.run if acquired else ""

    assert owner(replace(found, registers=LogView())) == "twopc"
    assert owner(replace(found, log=None)) == ""
    in_a_ledger, ledger = replace(found, log="twopc-ledger-k"), Ledger("twopc-ledger-k", tmp_path / "ledger")
    assert owner(in_a_ledger, Ledger("twopc-ledger-other", tmp_path / "twopc"), ledger) == "ledger"
    assert owner(in_a_ledger) is None


def test_an_empty_record_is_not_observed_further() -> None:
    committer = Markers(Store(), list)
    seen = committer.observe([Prepared("s-0", 1)], {"base": 5, "after": 0})
    assert (seen.record, seen.bound, seen.evidence) == (control.Control(), {"id": ""}, {})
