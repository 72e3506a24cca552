"""Servers in ``bootstrap_servers`` that do not respond, before one that does: the clients try each in turn."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.protocol.metadata import FindCoordinatorRequest

from twopc.errors import RetriableError
from twopc.integration.services.ports import free_ports
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.services import KafkaService
    from twopc.integration.services.kafka import LocalKafka

TIMEOUT_MS = 12_000
#: The expected wait if two of three servers are silent. Each server gets three turns, which take 1, 2 and 4 of the 21 parts of
#: the time. The two silent servers use up their first turns.
EXPECTED_S = 2 * TIMEOUT_MS / 1000 / 21


def asked(server: socket.socket) -> int:
    """Return how often a client has connected."""
    server.setblocking(False)  # noqa: FBT003 - the socket's own method
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


@contextlib.contextmanager
def silent(backlog: int = 50) -> Iterator[str]:
    """A server that accepts connections and never responds. With a backlog of 0, it does not accept connections either."""
    with contextlib.ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        while backlog == 0:
            client = held.enter_context(socket.socket())
            client.settimeout(0.2)
            try:
                client.connect(server.getsockname())
            except TimeoutError:
                break
        yield "{}:{}".format(*server.getsockname())


def refusing() -> str:
    [port] = free_ports(1)
    return f"127.0.0.1:{port}"


def connect(servers: list[str]) -> float:
    """The duration of the call, in seconds."""
    sink = KafkaSink(name="s", bootstrap_servers=",".join(servers), topic="t", timeout_ms=TIMEOUT_MS)
    began = time.monotonic()
    with contextlib.closing(BrokerConnection(sink.committing_config())) as connection:
        assert connection.nodes
    return time.monotonic() - began


@pytest.mark.parametrize("backlog", [50, 0])
def test_a_server_listed_after_silent_ones_is_always_reached(kafka: KafkaService, backlog: int) -> None:
    """Fails if each try draws a server independently: one time in twelve, the responding one is never drawn."""
    with silent(backlog) as one, silent(backlog) as other:
        for servers in ([one, other, kafka.bootstrap_servers], [one, kafka.bootstrap_servers, other]):
            assert connect(servers) < EXPECTED_S + 3


@pytest.mark.parametrize("kind", ["refused", "unknown", "refused and silent"])
def test_a_server_that_cannot_be_reached_gives_way_to_the_next(kafka: KafkaService, kind: str) -> None:
    with silent() as mute:
        absent = {"refused": [refusing(), refusing()], "unknown": ["no-such-host.invalid:9092"]}
        before = absent.get(kind, [refusing(), mute])
        assert connect([*before, kafka.bootstrap_servers]) < EXPECTED_S + 3


def test_servers_are_tried_in_order_until_the_timeout_has_elapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker: each server has one connection in each round; then the error names all of them."""
    tried: list[float] = []
    real = KafkaAdminClient.__init__

    def noted(self: KafkaAdminClient, **config: object) -> None:
        tried.append(float(str(config["bootstrap_timeout_ms"])))
        real(self, **config)

    monkeypatch.setattr(KafkaAdminClient, "__init__", noted)
    with contextlib.ExitStack() as held:
        mute = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        names = ["{}:{}".format(*server.getsockname()) for server in mute]
        began = time.monotonic()
        with pytest.raises(RetriableError, match=f"no Kafka broker responds at {', '.join(names)}"):
            BrokerConnection({"bootstrap_servers": names, "bootstrap_timeout_ms": 2100})
        took = time.monotonic() - began
        assert [asked(server) for server in mute] == [3, 3, 3]
    assert tried == pytest.approx([100, 100, 100, 200, 200, 200, 400, 400, 400])
    assert took >= 2.0


def test_a_request_waits_no_longer_for_a_connection_than_for_a_response(local_kafka: LocalKafka) -> None:
    """kafka-python alone ignores a request's limit: it waits 10 s for a silent broker to connect, longer after each failure."""
    sink = KafkaSink(name="s", bootstrap_servers=local_kafka.bootstrap_servers, topic="t", timeout_ms=2_000)
    with contextlib.closing(BrokerConnection(sink.committing_config())) as connection:
        local_kafka.pause()
        try:
            began = time.monotonic()
            for _ in range(3):  # the first call loses the connection, and the others wait for a new one
                [answer] = connection.send_all([(FindCoordinatorRequest(key_type=0, key="s", max_version=3),)])
                assert isinstance(answer, KafkaError)
            assert time.monotonic() - began < 9
        finally:
            local_kafka.resume()
