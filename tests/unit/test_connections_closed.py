"""A start that fails half-way leaves no connection open, and an error in one close does not keep the others open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.objects import Objects
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.files import MemoryFiles
from twopc.participants import Participants
from twopc.sinks.kafka import KafkaSink, committer


class Connected:
    """A committer whose connections count as open until it is closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.is_open = True
        self._error = error

    def decision_log(self) -> None:
        return None

    def close(self) -> None:
        self.is_open = False
        if self._error is not None:
            raise self._error


class Sink:
    """A sink with this committer; None: it cannot connect."""

    def __init__(self, name: str, committer: Connected | None) -> None:
        self.name = name
        self._committer = committer

    def create_committer(self) -> Connected:
        if self._committer is None:
            raise ConfigurationError("no such server")
        return self._committer


def sinks(*committers: Connected | None) -> list[Any]:
    return [Sink(str(number), committer) for number, committer in enumerate(committers)]


def test_if_a_sink_cannot_connect_the_sinks_opened_before_it_are_closed() -> None:
    first = Connected()
    with pytest.raises(ConfigurationError, match="no such server"):
        Participants(sinks(first, None))
    assert not first.is_open


def test_every_sink_is_closed_if_the_decisions_cannot_be_kept_anywhere() -> None:
    only = Connected()
    with pytest.raises(ConfigurationError, match="none of this query's sinks keeps the decisions"):
        Coordinator(sinks(only), Objects())
    assert not only.is_open


def test_an_error_while_closing_one_sink_leaves_no_other_sink_open() -> None:
    connected = [Connected(), Connected(OSError("reset")), Connected()]
    with pytest.raises(OSError, match="reset"):
        Coordinator(sinks(*connected), MemoryFiles()).close()
    assert not any(one.is_open for one in connected)


def test_a_kafka_sink_whose_log_cannot_be_opened_closes_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Connected()
    client.cluster_id = "c"

    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigurationError("no token")

    monkeypatch.setattr(committer, "TransactionClient", lambda _: client)
    monkeypatch.setattr(committer, "KafkaDecisionLog", refuse)
    with pytest.raises(ConfigurationError, match="no token"):
        KafkaSink(name="a", bootstrap_servers="localhost:1", topic="t").create_committer()
    assert not client.is_open
