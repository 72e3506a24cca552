"""Requests to coordinators that may be gone; other tests check the requests themselves on real brokers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData

from twopc.errors import ConfigurationError
from twopc.sinks.kafka import transactions
from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.connection_errors import ConnectionErrors
from twopc.sinks.kafka.handle import ProducerIdentity
from twopc.sinks.kafka.lanes import Lanes
from twopc.sinks.kafka.reports import NO_ANSWER, NONE
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Callable

DEAD, ALIVE = 1, 2


class Manager:
    """kafka-python's manager on a cluster whose node 1 has just left; node 2 now coordinates everything."""

    broker_version_data = BrokerVersionData((4, 0))

    def __init__(self) -> None:
        self.sent: list[int | None] = []
        self.refreshed: list[bool] = []  #: an entry for each request for newer metadata
        brokers = [SimpleNamespace(node_id=node) for node in (DEAD, ALIVE)]
        self.cluster = SimpleNamespace(request_update=lambda: self.refreshed.append(True), brokers=lambda: brokers)
        self.error: kafka_errors.KafkaError = kafka_errors.UnknownBrokerIdError(DEAD)  #: node 1's error
        self.paused: set[str] = set()  #: why the connection to node 2 sends nothing
        self.down = True  #: whether node 1 does not respond
        self.waits = 0
        self.looked_up: list[str] = []  #: the ids whose coordinator was looked up
        self._conns = {ALIVE: SimpleNamespace(paused=self.paused)}
        self._net = SimpleNamespace(sleep=self._wait)

    async def _wait(self, _: float) -> None:
        """After two waits, the broker's throttle ends."""
        self.waits += 1
        if self.waits % 2 == 0:
            self.paused.clear()

    def run(self, ask: Callable[[], Any]) -> Any:
        return asyncio.run(ask())

    def send(self, request: Any, node: int | None = None) -> Any:
        self.sent.append(node)
        if node == DEAD and self.down:
            raise self.error
        if self.paused:
            raise kafka_errors.NodeNotReadyError(f"Node paused: {self.paused}")
        return self._answer(request)

    async def answer_with(self, node: int, request: Any) -> Any:
        """Say that ``node`` coordinates every id."""
        rows = [SimpleNamespace(key=key, node_id=node, error_code=0) for key in request.coordinator_keys]
        return SimpleNamespace(coordinators=rows)

    async def _answer(self, request: Any) -> Any:
        if hasattr(request, "coordinator_keys"):
            self.looked_up += request.coordinator_keys
            rows = [SimpleNamespace(key=key, node_id=ALIVE, error_code=0) for key in request.coordinator_keys]
            return SimpleNamespace(coordinators=rows)
        return SimpleNamespace(error_code=0)


def client_that_knows(coordinators: dict[str, int]) -> tuple[TransactionClient, Manager]:
    client, connection, manager = object.__new__(TransactionClient), object.__new__(BrokerConnection), Manager()
    connection._manager = manager
    client._connection, client._nodes = connection, dict(coordinators)
    client._errors = ConnectionErrors(" (check kafka.sasl.*)")
    client._lanes = Lanes(connection, lambda: connection)
    return client, manager


def test_a_coordinator_that_left_the_cluster_is_looked_up_again_without_delaying_the_requests_to_others() -> None:
    client, manager = client_that_knows({"s.0.a.0": DEAD, "s.0.b.0": ALIVE})
    asked = [ProducerIdentity(name, 7, 0) for name in ("s.0.a.0", "s.0.b.0")]
    assert client.end(asked) == {"s.0.a.0": NONE, "s.0.b.0": NONE}
    assert client._nodes == {"s.0.a.0": ALIVE, "s.0.b.0": ALIVE}
    assert manager.sent == [DEAD, ALIVE, None, ALIVE]


def test_a_driver_that_runs_for_long_forgets_the_coordinators_of_old_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new worker brings new ids. An id that every batch uses is not looked up again."""
    monkeypatch.setattr(transactions, "_MOST_NODES", 10)
    client, manager = client_that_knows({"s.0.a.0": ALIVE})
    for batch in range(20):
        names = ["s.0.a.0", *(f"s.0.{batch}.{task}" for task in range(4))]
        assert client.end([ProducerIdentity(name, 7, 0) for name in names]) == dict.fromkeys(names, NONE)
    assert len(client._nodes) <= 10 + len(names)
    assert len(manager.sent) == 20 * (len(names) + 1)  # one look-up for the new ids of each batch
    assert manager.looked_up.count("s.0.a.0") == 0


def test_a_request_may_need_more_coordinators_than_the_client_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_MOST_NODES", 2)
    names = [f"s.0.a.{number}" for number in range(9)]
    client, _ = client_that_knows(dict.fromkeys(names[::2], ALIVE))
    for _ in range(2):
        assert client.end([ProducerIdentity(name, 7, 0) for name in names]) == dict.fromkeys(names, NONE)


def test_a_broker_that_joined_later_is_searched_for_at_once() -> None:
    """Otherwise, a coordinator that moves there does not respond for 5 minutes, and the query stops with a decided batch."""
    client, manager = client_that_knows({})
    assert client._connection.send_all([("request", DEAD)]) == [manager.error]
    assert len(manager.refreshed) == 1


def test_a_known_broker_that_is_not_ready_is_only_reported() -> None:
    client, manager = client_that_knows({})
    manager.error = kafka_errors.NodeNotReadyError(DEAD)
    assert client._connection.send_all([("request", DEAD)]) == [manager.error]
    assert not manager.refreshed


def test_a_request_is_sent_when_a_brokers_throttle_ends() -> None:
    """Each response may throttle the connection again, so no number of repetitions would be enough."""
    client, manager = client_that_knows({"s.0.a.0": ALIVE})
    manager.paused.add("throttle")
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0)]) == {"s.0.a.0": NONE}
    assert (manager.waits, manager.sent) == (2, [ALIVE] * 3)


def test_a_connection_paused_for_a_reason_other_than_a_throttle_is_only_reported() -> None:
    client, manager = client_that_knows({})
    manager.paused.add("max_in_flight")
    assert isinstance(client._connection.send_all([("request", ALIVE)])[0], kafka_errors.NodeNotReadyError)
    assert manager.waits == 0


def test_a_coordinator_without_a_successor_counts_as_no_response() -> None:
    client, manager = client_that_knows({"s.0.a.0": DEAD})
    manager._answer = lambda _request: kafka_errors.KafkaConnectionError()  # type: ignore[method-assign,assignment]
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0)]) == {"s.0.a.0": NO_ANSWER}


def test_the_reason_why_a_broker_does_not_respond_is_kept_until_it_responds() -> None:
    """Seen: a failed login was reported as a missing response. While kafka-python waits to connect again, it hides why."""
    client, manager = client_that_knows({"s.0.a.0": DEAD, "s.0.b.0": ALIVE})
    manager._answer = lambda request: (  # type: ignore[method-assign]
        manager.answer_with(DEAD, request)
        if hasattr(request, "coordinator_keys")
        else Manager._answer(manager, request)
    )
    manager.error = kafka_errors.SaslAuthenticationFailedError("wrong password")
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0)]) == {"s.0.a.0": NO_ANSWER}
    manager.error = kafka_errors.NodeNotReadyError(DEAD)
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0), ProducerIdentity("s.0.b.0", 7, 0)])["s.0.b.0"] == NONE
    [why] = client.connection_errors()
    assert why.startswith("the last connection to broker 1 failed: ") and why.endswith("wrong password")
    manager.down = False
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0)]) == {"s.0.a.0": NONE}
    assert client.connection_errors() == []


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("Handshake failed: certificate expired", ""),
        ("111 ECONNREFUSED", ""),
        ("DNS Resolution failure", ""),
        ("Connection timed out", ""),
        ("Connection closed during connect", ""),
        ("socket disconnected", " (check kafka.sasl.*)"),
        ("Connection closed during send", " (check kafka.sasl.*)"),
        ("closed", " (check kafka.sasl.*)"),
        (ConnectionResetError("reset"), " (check kafka.sasl.*)"),
    ],
    ids=str,
)
def test_the_reason_why_no_coordinator_can_be_looked_up_is_kept(error: str | OSError, hint: str) -> None:
    """kafka-python often discards the response to a rejected login, because the broker then closes the connection.

    Seen: the error suggested a rejected login for a broker that was only down.
    """
    client, manager = client_that_knows({})
    manager._answer = lambda _request: kafka_errors.KafkaConnectionError(error)  # type: ignore[method-assign,assignment]
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0)]) == {"s.0.a.0": NO_ANSWER}
    [why] = client.connection_errors()
    assert why.startswith("the last connection failed: ") and why.endswith(f"{error}{hint}")


def test_an_error_is_forgotten_if_another_coordinator_has_answered_for_its_ids() -> None:
    """Seen: long after a coordinator had moved, an error quoted its old connection error, and hid a look-up's new one."""
    client, manager = client_that_knows({"s.0.a.0": DEAD, "s.0.b.0": DEAD})
    manager.error = kafka_errors.SaslAuthenticationFailedError("wrong password")
    assert client.end([ProducerIdentity("s.0.a.0", 7, 0)]) == {"s.0.a.0": NONE}
    assert client.connection_errors() == []


def test_an_error_is_kept_while_one_of_its_ids_has_no_answer() -> None:
    client, _ = client_that_knows({})
    errors = client._errors
    errors.note([DEAD], [kafka_errors.SaslAuthenticationFailedError("wrong password")], [{"s.0.a.0", "s.0.b.0"}])
    errors.settle({"s.0.a.0"})
    assert len(client.connection_errors()) == 1
    errors.settle({"s.0.b.0"})
    assert client.connection_errors() == []


def test_errors_of_named_brokers_do_not_hide_the_error_of_a_look_up() -> None:
    client, _ = client_that_knows({})
    for node in (None, DEAD):
        client._errors.note([node], [kafka_errors.SaslAuthenticationFailedError("wrong password")], [()])
    assert [why.partition(" failed")[0] for why in client.connection_errors()] == [
        "the last connection to broker 1",
        "the last connection",
    ]


@pytest.mark.parametrize(
    ("ask", "broker"),
    [
        (lambda client: client.list_open(""), " to broker 1"),
        (lambda client: client.partitions({"out:0": DEAD}), " to broker 1"),
        (lambda client: client.topics(["out"]), ""),
    ],
    ids=["transactions", "partitions", "topics"],
)
def test_a_failed_question_about_anything_else_is_noted_too(
    ask: Callable[[TransactionClient], object], broker: str
) -> None:
    """Otherwise, the error of an earlier request counts as the last one."""
    client, manager = client_that_knows({})
    node = DEAD if broker else None
    client._errors.note([node], [kafka_errors.SaslAuthenticationFailedError("wrong password")], [()])
    manager.error = kafka_errors.KafkaConnectionError("111 ECONNREFUSED")
    manager._answer = lambda _request: manager.error  # type: ignore[method-assign,assignment]
    ask(client)
    [why] = [why for why in client.connection_errors() if f"connection{broker} failed" in why]
    assert why == f"the last connection{broker} failed: KafkaConnectionError: 111 ECONNREFUSED"


def test_the_error_of_a_partitions_former_leader_is_forgotten() -> None:
    client, manager = client_that_knows({})
    manager.error = kafka_errors.KafkaConnectionError("111 ECONNREFUSED")
    assert client.partitions({"out:0": DEAD})["out:0"].error == NO_ANSWER
    assert len(client.connection_errors()) == 1
    row = SimpleNamespace(partition_index=0, error_code=0, active_producers=[])

    async def answer(_request: Any) -> Any:
        return SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=[row])])

    manager._answer = answer  # type: ignore[method-assign,assignment]
    assert client.partitions({"out:0": ALIVE})["out:0"].error == NONE
    assert client.connection_errors() == []


def connect_to(version: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> TransactionClient:
    """A client of a broker with the requests of a version, as kafka-python has recorded them."""
    connection: Any = object.__new__(BrokerConnection)
    connection._manager = SimpleNamespace(broker_version_data=BrokerVersionData(version))
    connection.admin = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(transactions, "BrokerConnection", lambda _: connection)
    return TransactionClient({"bootstrap_servers": ["old:9092", "older:9092"]})


@pytest.mark.parametrize("version", [(2, 4), (2, 8)])
def test_a_broker_that_is_too_old_is_refused(version: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one: `tests/live/test_broker_versions.py`."""
    reason = (
        rf"the brokers at old:9092, older:9092 speak the protocol of Kafka {version[0]}\.{version[1]}, which does not include "
        r"DescribeTransactions and ListTransactions.*Nothing was written.*Upgrade the brokers to Kafka 3\.0 or newer"
    )
    with pytest.raises(ConfigurationError, match=reason):
        connect_to(version, monkeypatch)


@pytest.mark.parametrize("version", [(3, 0), (4, 3)])
def test_a_broker_that_supports_the_requests_is_accepted(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_to(version, monkeypatch)


@pytest.mark.parametrize(("version", "pattern"), [((4, 0), None), ((4, 1), r"a\-b\..*")])
def test_brokers_that_can_filter_are_asked_only_for_the_ids_of_the_sink(
    version: tuple[int, int], pattern: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older broker lists all ids, and the client drops those of other sinks.

    For real brokers, see `tests/live/operate/test_many_sinks.py`.
    """
    client = connect_to(version, monkeypatch)
    asked = []

    async def answer(request: Any, _node: int) -> Any:
        asked.append(getattr(request, "transactional_id_pattern", None))
        rows = [SimpleNamespace(transactional_id=tid) for tid in ("a-b.0.w.0", "a-bc.0.w.0", "c.0.w.0")]
        return SimpleNamespace(error_code=0, transaction_states=rows)

    manager = client._connection._manager
    manager.run = lambda exchange: asyncio.run(exchange())
    manager.send = answer
    manager.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(node_id=1)])
    assert client.list_open("a-b.").transactional_ids == ("a-b.0.w.0",)
    assert client.pattern_of("") is None
    assert asked == [pattern]


def test_a_request_to_any_broker_that_failed_is_forgotten_once_a_broker_responds() -> None:
    errors = ConnectionErrors()
    errors.note([None], [kafka_errors.KafkaConnectionError("socket disconnected")], [()])
    assert "socket disconnected" in " ".join(errors.texts([DEAD]))
    errors.note([ALIVE], ["a response"], [()])
    assert not errors.texts([DEAD])
