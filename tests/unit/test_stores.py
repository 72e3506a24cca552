"""Observing a store while its query runs: a finding counts only if a second look confirms it. These tests need no server."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_control import FIRST, SECOND, Markers, Store
from twopc import control
from twopc.attempt import Attempt, Claim, Evidence, Owner
from twopc.errors import ConfigurationError, UnavailableError
from twopc.fenced_committer import Prepared
from twopc.files import LocalFiles
from twopc.integration.operate.checkpoint import CheckpointState
from twopc.integration.operate.finding import Urgency
from twopc.integration.operate.stores import Decisions, observe_store, read_decisions
from twopc.integration.verify.history import Batch, BatchId, History
from twopc.log_view import LogView
from twopc.records import Begin, Decision, TaskReport
from twopc.registers import RegisterLog
from twopc.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from twopc.integration.operate.finding import Advice
    from twopc.integration.operate.store_state import StoreState
    from twopc.observation import Observation
    from twopc.sinks.kafka import KafkaSink

QUERY = FIRST.query_id


class Sink:
    """The parts of a sink that a look needs. ``meddle`` runs before each look at the store."""

    name = "s"

    def __init__(self, store: Store, meddle: Callable[[], object] = lambda: None) -> None:
        self.store = store
        self.markers: dict[str, Evidence] = {}
        self.meddle = meddle
        self.looks = 0
        self.rows: dict[int, int] = {}

    def decode_handle(self, encoded: dict[str, Any]) -> Prepared:
        return Prepared(**encoded)

    def create_committer(self) -> Markers:
        self.looks += 1
        self.meddle()
        committer = Counting(self.store, list)
        committer.markers, committer.rows = self.markers, self.rows
        return committer


class Counting(Markers):
    """A committer of a table whose history records how many rows each decision added."""

    rows: Mapping[int, int] = MappingProxyType({})

    def observed(self, *given: Any) -> Observation:
        return replace(super().observed(*given), rows=self.rows)


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


def look(sink: Sink, log: Log, found: CheckpointState | None = None) -> tuple[StoreState, list[Advice]]:
    return observe_store(sink, lambda: Decisions(found or checkpoint(sink.store), log.read()))  # type: ignore[arg-type]


def anchors(sink: Sink, log: Log) -> list[str]:
    _, advice = look(sink, log)
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


def test_a_batch_decided_and_published_between_two_observations_is_not_reported(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    batches = iter([1, 2])

    def run_on() -> None:  # the log was read just before
        if (batch := next(batches, None)) is not None:
            publish(owner, log, batch)

    sink.meddle = run_on
    assert anchors(sink, log) == ["healthy"]
    assert sink.looks == 3


def test_a_store_that_stays_ahead_is_reported(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    older = log.view
    publish(owner, log, 1)
    log.view = older
    assert anchors(sink, log) == ["the-start-is-refused"]
    assert sink.looks == 2


def test_a_store_restored_to_a_state_before_a_takeover_is_reported_as_behind_and_not_as_another_querys(
    sink: Sink,
) -> None:
    ended, owner, log = Markers(sink.store, list), Markers(sink.store, list), Log()
    ended.acquire(SECOND, ended.inspect())
    backup = sink.store.held
    owner.acquire(FIRST, owner.inspect())
    publish(owner, log, 0)
    publish(owner, log, 1)
    sink.store.held = backup
    _, [advice] = look(sink, log)
    assert (
        "the query's log ends with batch 1, but decisions from this log, or rows of these decisions, are missing from the store"
        in advice.what
    )


def test_a_query_that_another_query_has_replaced_gets_no_advice_to_end_that_query(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    successor = Markers(sink.store, list)
    successor.acquire(SECOND, successor.inspect())
    _, [advice] = look(sink, log)
    assert "EndQuery" in advice.action  # the successor has decided nothing
    scan_start = successor.begin_attempt()
    successor.commit([Prepared("s-0", 1)], scan_start)
    _, [advice] = look(sink, log)
    assert (advice.urgency, advice.anchor) == (Urgency.ACT, "the-start-is-refused")
    assert "ended when another query replaced it" in advice.what and "EndQuery" not in advice.action


def test_a_query_that_overtakes_each_observation_is_not_compared_but_needs_no_operator(
    sink: Sink, owner: Markers
) -> None:
    log = Log()
    publish(owner, log, 0)
    batches = iter(range(1, 100))
    sink.meddle = lambda: publish(owner, log, next(batches))
    _, [advice] = look(sink, log)
    assert (advice.urgency, sink.looks) == (Urgency.WATCH, 3)


def test_another_store_is_reported_even_if_each_observation_is_overtaken(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    batches = iter(range(1, 100))
    sink.meddle = lambda: publish(owner, log, next(batches))
    _, [advice] = look(sink, log, replace(checkpoint(sink.store), sinks={"s": {"id": "another"}}))
    assert (advice.urgency, advice.anchor) == (Urgency.ACT, "the-start-is-refused")


def test_a_problem_whose_numbers_grow_with_each_batch_is_reported(sink: Sink, owner: Markers) -> None:
    """Its text differs at each look, because the query is running."""
    log = Log()
    batches = iter(range(100))

    def read() -> Decisions:
        publish(owner, log, next(batches))
        sink.rows = dict.fromkeys((version_of(one.decision.scan_start["s"]) for one in log.batches.values()), 9)
        return Decisions(checkpoint(sink.store), log.read())

    _, [advice] = observe_store(sink, read)  # type: ignore[arg-type]
    assert (advice.urgency, advice.anchor, sink.looks) == (Urgency.ACT, "the-rows-of-a-batch-differ", 2)


def test_the_checkpoint_is_read_again_at_each_observation(sink: Sink, owner: Markers) -> None:
    """The query binds its checkpoint and publishes its first batch after the first look at the checkpoint."""
    log = Log()
    found = iter([Decisions(replace(checkpoint(sink.store), log=None, sinks={}), log.read())])

    def decide_first() -> None:
        if not log.batches:
            publish(owner, log, 0)

    sink.meddle = decide_first

    def read() -> Decisions:
        return next(found, None) or Decisions(checkpoint(sink.store), log.read())

    _, [advice] = observe_store(sink, read)  # type: ignore[arg-type]
    assert (advice.anchor, sink.looks) == ("healthy", 2)


def test_an_error_of_the_users_sink_is_reported_without_its_text(sink: Sink, owner: Markers) -> None:
    class Broken(Sink):
        def create_committer(self) -> Markers:
            raise RuntimeError("cannot open mysql://me:top-secret@db")

    log = Log()
    publish(owner, log, 0)
    state, [advice] = look(Broken(sink.store), log)
    assert advice.urgency is Urgency.ACT
    assert "RuntimeError in " in str(state.problem) and "top-secret" not in str(state.problem)


def test_an_abandoned_batch_is_reported(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)
    publish(owner, log, 1)
    begin = Begin(query_id=QUERY, first_batch=2, prior_offsets=(), abandons=True)
    log.view = replace(log.view, begin=begin, decision=None)
    state, [advice] = look(sink, log)
    assert (state.batch, state.abandoned, state.facts()["last_decided"]) == (None, 1, 1)
    assert advice.what == "batch 1 was abandoned, and no later batch is decided yet"


def test_a_check_changes_neither_the_record_nor_a_marker(sink: Sink, owner: Markers) -> None:
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
    state, [advice] = look(sink, log, found)
    assert (state.batch, advice.anchor) == (None, "healthy")


@pytest.mark.parametrize("problem", [None, "the ledger does not respond"])
def test_decisions_that_cannot_be_read_are_not_compared(sink: Sink, owner: Markers, problem: str | None) -> None:
    publish(owner, Log(), 0)
    found = Decisions(checkpoint(sink.store), None, problem)
    state, [advice] = observe_store(sink, lambda: found)  # type: ignore[arg-type]
    assert (state.is_known, state.problem, advice.anchor) == (False, None, "the-stores-of-sinks")
    assert (problem or "--bootstrap-servers") in f"{advice.what} {advice.action}"


@pytest.mark.parametrize(
    ("error", "anchor"),
    [
        (UnavailableError("no answer"), "a-store-does-not-respond"),
        (ConfigurationError("somebody else's"), "the-control-record-is-missing-or-unreadable"),
    ],
)
def test_a_store_that_cannot_be_read_is_observed_only_once(
    sink: Sink, owner: Markers, monkeypatch: pytest.MonkeyPatch, error: Exception, anchor: str
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    found = checkpoint(sink.store)
    monkeypatch.setattr(Markers, "load", fail)
    state, [advice] = look(sink, Log(), found)
    assert (advice.anchor, state.problem, sink.looks) == (anchor, str(error), 1)
    del owner


def test_a_handle_of_a_different_kind_is_reported(sink: Sink, owner: Markers) -> None:
    log = Log()
    publish(owner, log, 0)

    class Strict(Sink):
        def decode_handle(self, encoded: dict[str, Any]) -> Prepared:
            import msgspec  # noqa: PLC0415 - only this method needs it

            return msgspec.convert({"file": encoded}, Prepared)

    state, [advice] = look(Strict(sink.store), log)
    assert advice.anchor == "the-control-record-is-missing-or-unreadable" and "a different release" in str(
        state.problem
    )


class Ledger:
    """A Kafka sink whose decision log is in a directory."""

    def __init__(self, ledger: str, directory: Path) -> None:
        self.ledger, self.directory = ledger, directory

    def create_decision_log(self) -> RegisterLog:
        return RegisterLog(LocalFiles(self.directory))


def test_the_decisions_are_read_from_the_log_that_the_checkpoint_is_bound_to(tmp_path: Path) -> None:
    found = CheckpointState(location=str(tmp_path), query_id="q", planned=0, finished=0, log="registers", sinks={})
    for name in ("twopc", "ledger"):
        log = RegisterLog(LocalFiles(tmp_path / name))
        log.acquire(Claim("q", name, "registers"))

    def owner(state: CheckpointState, *kafka: Ledger) -> str | None:
        sinks: Sequence[KafkaSink] = kafka  # type: ignore[assignment]
        history = read_decisions(state, sinks).history
        if history is None:
            return None
        return history.view.acquired.run if history.view.acquired else ""

    assert owner(replace(found, registers=LogView())) == "twopc"
    assert owner(replace(found, log=None)) == ""
    in_a_ledger, ledger = replace(found, log="twopc-ledger-k"), Ledger("twopc-ledger-k", tmp_path / "ledger")
    assert owner(in_a_ledger, Ledger("twopc-ledger-other", tmp_path / "twopc"), ledger) == "ledger"
    assert owner(in_a_ledger) is None


def test_a_ledger_that_does_not_respond_is_not_the_stores_failure() -> None:
    class Silent:
        ledger = "twopc-ledger-k"

        def create_decision_log(self) -> RegisterLog:
            raise UnavailableError("the ledger does not respond")

    found = CheckpointState(location="c", query_id="q", planned=0, finished=0, log="twopc-ledger-k", sinks={})
    decisions = read_decisions(found, [Silent()])  # type: ignore[list-item]
    assert (decisions.history, decisions.problem) == (None, "the ledger does not respond")


def test_an_empty_record_is_not_observed_further() -> None:
    committer = Markers(Store(), list)
    seen = committer.observe([Prepared("s-0", 1)], {"base": 5, "after": 0})
    assert (seen.record, seen.bound, seen.evidence) == (control.Control(), {"id": ""}, {})
