"""A look at all sinks of a cluster. For the findings in each, see ``tests/live/operate``."""

from __future__ import annotations

import threading

import pytest

from tests.unit.test_verify_checks import ABORTED, LAST, FakeCluster, as_cluster, decided
from twopc.attempt import Evidence
from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.operate import observe as observe_module
from twopc.integration.operate.observe import SinkState, observe_all
from twopc.integration.verify.markers import Markers
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.reports import NO_ANSWER, NOT_FOUND, Description

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
