"""A look at all sinks of a cluster. For the findings in each, see ``tests/live/operate``."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.unit.test_log_view import BEGIN, decision
from tests.unit.test_verify_checks import ABORTED, COMMITTING, LAST, FakeCluster, as_cluster, decided, marker, task
from tests.unit.test_verify_history import history
from tests.unit.test_verify_transactions import log_of
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.operate import observe as observe_module
from twopc.integration.operate import transactions
from twopc.integration.operate.observe import SinkState, observe_all
from twopc.integration.operate.opened import Standing
from twopc.integration.operate.printing import ATTENTION, DONE
from twopc.integration.operate.subject import Connection
from twopc.integration.verify import describing
from twopc.integration.verify import markers as markers_module
from twopc.integration.verify.markers import Markers
from twopc.records import Begin
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.handle import driver_id
from twopc.sinks.kafka.reports import NO_ANSWER, NOT_AUTHORIZED, NOT_FOUND, Description, Listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.sinks.kafka.transactions import TransactionClient

SINKS = [KafkaSink(name=name, bootstrap_servers="localhost:1", topic="t") for name in ("a", "b", "c")]


def test_sinks_are_observed_together_and_returned_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that waits for a driver to commit must not keep a thousand others waiting."""
    together = threading.Barrier(len(SINKS), timeout=30)

    def look(sink: KafkaSink) -> SinkState:
        together.wait()
        if sink.name == "b":
            raise ConfigurationError("no permission")
        return SinkState(sink=sink.name, ledger=sink.ledger)

    monkeypatch.setattr(observe_module, "observe", look)
    assert [(state.sink, state.problem) for state in observe_all(SINKS)] == [
        ("a", None),
        ("b", "no permission"),
        ("c", None),
    ]


def test_no_state_is_returned_for_a_cluster_that_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: KafkaSink) -> SinkState:
        raise RetriableError("no broker")

    monkeypatch.setattr(observe_module, "observe", look)
    with pytest.raises(RetriableError, match="no broker"):
        observe_all(SINKS)


def test_the_batches_of_an_ended_query_do_not_count_as_its_successors() -> None:
    """Every query counts its batches from 0."""
    ended = (BEGIN, decision(0), decision(1))
    begin = Begin(query_id="b", first_batch=0, prior_offsets=(), ends="a")
    assert observe_module._last_committed(history(*ended), set()) == 1
    assert observe_module._last_committed(history(*ended, begin), set()) is None
    assert observe_module._last_committed(history(*ended, begin, decision(0, query_id="b")), {0}) is None
    assert observe_module._last_committed(history(*ended, begin, decision(0, query_id="b")), set()) == 0


def test_a_proof_says_whether_the_coordinator_described_the_transaction() -> None:
    markers = Markers()
    markers.read_new(as_cluster(FakeCluster()))
    absent = {"u": Description(NO_ANSWER), "v": ABORTED, "w": Description(NOT_FOUND)}
    found = observe_module._proofs(decided("u", "v", "w"), absent, markers, LAST)
    assert [(one.evidence, one.is_described) for one in found] == [
        (Evidence.UNKNOWN, False),
        (Evidence.ABORTED, True),
        (Evidence.ABORTED, True),
    ]


# -- a coordinator that does not describe what a broker has listed ---------------------------------------------------------


def silent(*answers: Description) -> TransactionClient:
    """Return a client that lists one transaction and describes it with one answer after the other."""
    left = list(answers)

    def describe(ids: Sequence[str]) -> dict[str, Description]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return {tid: Description(NOT_FOUND) if tid == driver_id("a") else answer for tid in ids}

    fake = SimpleNamespace(describe=describe, list_open=lambda _: Listing(("a.1.w.0",), complete=True))
    return cast("TransactionClient", fake)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ((Description(NO_ANSWER),), ATTENTION),
        ((Description(NOT_AUTHORIZED),), ATTENTION),
        ((Description("NONE", "CompleteCommit", 7, 0),), DONE),
        ((Description(NOT_FOUND),), DONE),  # its id expired just now
    ],
)
def test_a_listed_transaction_that_no_coordinator_describes_may_be_open(
    answers: tuple[Description, ...], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describing, "_ANSWER_S", 0.01)
    client = silent(*answers)

    def observe(sink: KafkaSink, *_: Any) -> SinkState:
        return replace(observe_module._without_log(sink, client, "elsewhere"), is_elsewhere=True)

    monkeypatch.setattr(transactions, "observe", observe)
    assert transactions.list_open("a", Connection("localhost:1")).status == status


def test_a_coordinator_that_restarts_is_asked_again() -> None:
    state = observe_module._without_log(
        SINKS[0], silent(Description(NO_ANSWER), Description("NONE", "Ongoing", 7, 0)), ""
    )
    assert state.is_complete and [one.transactional_id for one in state.transactions] == ["a.1.w.0"]


def test_a_state_is_incomplete_if_no_coordinator_describes_a_listed_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(describing, "_ANSWER_S", 0.01)
    log = log_of(BEGIN, decision(0, task("u")))
    cluster = FakeCluster(log, visible=[[marker("u")]], described=[{"w": Description(NO_ANSWER)}])
    cluster.transactions.list_open = lambda _: Listing(("s.1.w.0",), complete=True)
    state = observe_module._observed(as_cluster(cluster))
    assert (state.transactions, state.is_complete) == ((), False)


def test_a_decided_transaction_that_is_not_listed_counts_as_open_while_its_commit_is_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker lists only transactions that are Ongoing."""
    monkeypatch.setattr(markers_module, "_COMMIT_S", 0.01)
    monkeypatch.setattr(observe_module, "_COMMIT_S", 0.01)
    cluster = FakeCluster(log_of(BEGIN, decision(0, task("u"))), described=[{"u": COMMITTING}])
    state = observe_module._observed(as_cluster(cluster))
    assert [(one.transactional_id, one.standing) for one in state.transactions] == [("s.1.u.0", Standing.DECIDED)]
