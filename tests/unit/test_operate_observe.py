"""A look at all sinks of a cluster. For the findings in each, see ``tests/live/operate``."""

from __future__ import annotations

import threading

import pytest

from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.operate import observe as observe_module
from twopc.integration.operate.observe import SinkState, observe_all
from twopc.sinks.kafka import KafkaSink

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
