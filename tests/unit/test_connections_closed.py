"""A start that fails half-way leaves no connection open, and an error of one close does not keep the others open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sinks.kafka import KafkaSink, committer
from tests.unit.objects import Objects
from twopc.coordinator import Coordinator
from twopc.errors import ConfigurationError
from twopc.files import MemoryFiles
from twopc.participants import Participants

if TYPE_CHECKING:
    from collections.abc import Callable


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
    def __init__(self, name: str, connect: Callable[[], Connected]) -> None:
        self.name = name
        self.create_committer = connect


def cannot_connect() -> Connected:
    raise ConfigurationError("no such server")


def test_a_sink_that_cannot_connect_closes_those_before_it() -> None:
    first = Connected()
    sinks: list[Any] = [Sink("a", lambda: first), Sink("b", cannot_connect)]
    with pytest.raises(ConfigurationError, match="no such server"):
        Participants(sinks)
    assert not first.is_open


def test_a_place_that_cannot_hold_decisions_closes_every_sink() -> None:
    only = Connected()
    sinks: list[Any] = [Sink("a", lambda: only)]
    with pytest.raises(ConfigurationError):
        Coordinator(sinks, Objects())
    assert not only.is_open


def test_an_error_of_one_close_closes_the_others_all_the_same() -> None:
    connected = [Connected(), Connected(OSError("reset")), Connected()]
    sinks: list[Any] = [Sink(str(number), lambda one=one: one) for number, one in enumerate(connected)]  # type: ignore[misc]
    with pytest.raises(OSError, match="reset"):
        Coordinator(sinks, MemoryFiles()).close()
    assert not any(one.is_open for one in connected)


def test_a_kafka_sink_whose_log_cannot_be_opened_closes_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Connected()
    client.verifies = True

    def refuse(*_: Any, **__: Any) -> None:
        raise ConfigurationError("no token")

    monkeypatch.setattr(committer, "TransactionClient", lambda _: client)
    monkeypatch.setattr(committer, "KafkaDecisionLog", refuse)
    with pytest.raises(ConfigurationError, match="no token"):
        KafkaSink(name="a", bootstrap_servers="localhost:1", topic="t").create_committer()
    assert not client.is_open
