"""Requests to brokers that kafka-python does not know yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kafka.errors import NodeNotReadyError, UnknownBrokerIdError

from sinks.kafka.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Manager:
    """kafka-python's, before its metadata has a broker."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.updates = 0
        self.cluster = SimpleNamespace(request_update=self._update)

    def _update(self) -> None:
        self.updates += 1

    def send(self, *_: object) -> None:
        raise self._error

    def run(self, exchange: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        return asyncio.run(exchange())


def sent_to(manager: Manager) -> list[Any]:
    connection = object.__new__(BrokerConnection)
    connection._manager = manager
    return connection.send_all([("request", 4)])


def test_a_broker_that_joined_later_is_looked_for_at_once() -> None:
    """Else a coordinator that moves there does not answer for 5 minutes, and the query stops with a decided batch."""
    error = UnknownBrokerIdError(4)
    manager = Manager(error)
    assert sent_to(manager) == [error]
    assert manager.updates == 1


def test_a_broker_that_is_known_and_not_ready_is_only_reported() -> None:
    error = NodeNotReadyError(4)
    manager = Manager(error)
    assert sent_to(manager) == [error]
    assert manager.updates == 0
