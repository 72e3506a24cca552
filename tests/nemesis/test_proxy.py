"""The proxy on a real broker: it changes nothing by default, and otherwise exactly the selected request."""

from __future__ import annotations

import io
import socket
import struct
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, Producer
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse

from tests.live.pipeline import create_topic
from tests.live.rules.schedules import until
from tests.nemesis.frames import FENCED, Api, Request, Response, read_frames
from tests.nemesis.proxy import KafkaProxy
from tests.nemesis.rules import LONGEST_HOLD_S, Fault
from tests.reader import committed
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from typing import Any

    from tests.live.services import KafkaService
    from tests.nemesis.rules import Exchange


@pytest.fixture
def name() -> str:
    return f"p{uuid.uuid4().hex[:10]}"


def producer_of(proxy: KafkaProxy, transactional_id: str, **config: Any) -> Producer:
    """A producer that retries a request after a second without a response."""
    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": transactional_id,
            "socket.timeout.ms": 1_000,
            "retry.backoff.ms": 10,
            "log_level": 0,
            **config,
        }
    )
    producer.list_topics(timeout=10)
    producer.init_transactions(10)
    return producer


def write(producer: Producer, topic: str, value: str) -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(10)


def commit(producer: Producer, topic: str, value: str) -> None:
    write(producer, topic, value)
    producer.commit_transaction(20)


def assert_repeated_until_complete(ends: list[Exchange]) -> None:
    """A broker that has acted answers CONCURRENT_TRANSACTIONS until the markers are written; the client also retries then."""
    *early, last = [(end.fault, end.answer()) for end in ends]
    assert set(early) <= {(None, "ConcurrentTransactionsError")}
    assert last == (None, "NONE")


def test_requests_that_match_no_rule_pass_unchanged_in_both_directions(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(proxy.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    values = [f"{number}-{'x' * number}" for number in range(200)]
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(10)
    # The transaction's partitions may be behind the coordinator.
    assert until(lambda: committed(proxy.bootstrap_servers, topic) == Counter(values))
    assert committed(kafka.bootstrap_servers, topic) == Counter(values)
    assert proxy.injected == 0
    [end] = proxy.recorded(Api.END_TXN, name)
    assert (end.answer(), end.request.committed, end.request.client_id) == ("NONE", True, "rdkafka")
    began = proxy.recorded(Api.INIT_PRODUCER_ID, name)[-1]  # a new cluster's coordinator makes the producer ask again
    assert began.response is not None
    assert end.request.body.producer_id == began.response.body.producer_id


def test_clients_see_only_the_proxys_address(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    """A broker's own address in a response would lead its client past the proxy."""
    producer = producer_of(proxy, name)
    addresses = {f"{broker.host}:{broker.port}" for broker in producer.list_topics(timeout=10).brokers.values()}
    assert addresses == {proxy.bootstrap_servers}
    client = TransactionClient({"bootstrap_servers": [proxy.bootstrap_servers]})
    try:
        assert client.describe([name])[name].state == "Empty"
    finally:
        client.close()
    assert proxy.bootstrap_servers != kafka.bootstrap_servers
    assert proxy.recorded(Api.DESCRIBE_TRANSACTIONS, name)


def test_only_the_selected_request_is_hit(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    """It hits the second commit of one of two producers; every other request reaches the broker once."""
    topic = create_topic(kafka.bootstrap_servers, name)
    hit, other = producer_of(proxy, f"{name}.hit"), producer_of(proxy, f"{name}.other")
    rule = proxy.on(Api.END_TXN, transactional_id=f"{name}.h*", committed=True, nth=2).drop_request()
    for number in range(3):
        commit(hit, topic, f"hit {number}")
        commit(other, topic, f"other {number}")
    assert proxy.injected == rule.injected == 1
    ends = proxy.recorded(Api.END_TXN, f"{name}.hit")
    assert [end.fault for end in ends] == [None, Fault.DROP_REQUEST, None, None]
    assert [end.response is None for end in ends] == [False, True, False, False]
    assert all(end.fault is None for end in proxy.recorded(Api.END_TXN, f"{name}.other"))
    assert sum(committed(kafka.bootstrap_servers, topic).values()) == 6


def test_the_broker_has_acted_on_a_request_whose_response_is_dropped(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    proxy.on(Api.END_TXN, transactional_id=name).drop_response()
    commit(producer, topic, "once")
    first, *again = proxy.recorded(Api.END_TXN, name)
    assert (first.fault, first.answer()) == (Fault.DROP_RESPONSE, "NONE")
    assert_repeated_until_complete(again)
    assert committed(kafka.bootstrap_servers, topic) == Counter(["once"])


@pytest.mark.parametrize("answered", [False, True])
def test_a_connection_breaks_before_or_after_the_broker_acts(
    kafka: KafkaService, proxy: KafkaProxy, name: str, *, answered: bool
) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    rule = proxy.on(Api.END_TXN, transactional_id=name).close_connection(answered=answered)
    commit(producer, topic, "once")
    broken = rule.wait()
    assert (broken.response is not None) is answered
    first, *again = proxy.recorded(Api.END_TXN, name)
    assert first is broken
    assert_repeated_until_complete(again)
    assert committed(kafka.bootstrap_servers, topic) == Counter(["once"])


def test_a_held_request_arrives_even_if_its_client_has_given_up(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    write(producer, topic, "late")
    held = proxy.on(Api.END_TXN, transactional_id=name).hold()
    with pytest.raises(KafkaException):
        producer.commit_transaction(0.2)
    late = held.wait()
    del producer  # which closes its connection
    assert committed(kafka.bootstrap_servers, topic) == Counter()
    assert late.response is None
    held.release()
    assert late.answer() == "NONE"


def test_a_request_or_its_response_can_be_delayed(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    for arm in (proxy.on(Api.END_TXN, transactional_id=name).delay, proxy.on(Api.END_TXN).delay_response):
        rule = arm(0.3)
        began = time.monotonic()
        commit(producer, topic, "slow")
        assert time.monotonic() - began >= 0.3
        assert rule.injected == 1
    assert committed(kafka.bootstrap_servers, topic) == Counter({"slow": 2})


def test_the_broker_sends_a_new_response_to_a_replayed_request(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    commit(producer, topic, "once")
    [end] = proxy.recorded(Api.END_TXN, name)
    assert until(lambda: proxy.replay(end) == "NONE")  # a repeated commit succeeds once the first is complete
    producer_of(proxy, name)
    assert proxy.replay(end) in FENCED
    assert len(proxy.recorded(Api.END_TXN, name)) == 1, "a replay must not be recorded as a client's request"


def test_a_wait_for_a_request_that_never_comes_fails(proxy: KafkaProxy, name: str) -> None:
    rule = proxy.on(Api.END_TXN, transactional_id=name).hold()
    with pytest.raises(AssertionError, match="matched 0 requests"):
        rule.wait(0.01)


def test_the_proxy_releases_every_held_request_when_it_is_closed(kafka: KafkaService, name: str) -> None:
    """A test ends even if its schedule forgets a release."""
    topic = create_topic(kafka.bootstrap_servers, name)
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        producer = producer_of(proxy, name)
        write(producer, topic, "held")
        held = proxy.on(Api.END_TXN, transactional_id=name).hold()
        with pytest.raises(KafkaException):
            producer.commit_transaction(0.1)
        held.wait()
        began = time.monotonic()
    assert time.monotonic() - began < LONGEST_HOLD_S / 4


def test_the_proxy_raises_an_error_when_it_is_closed_if_a_client_did_not_speak_plain_kafka(kafka: KafkaService) -> None:
    """A client that uses TLS would pass unseen, and the test would check nothing."""
    proxy = KafkaProxy(kafka.bootstrap_servers)
    with pytest.raises(ValueError, match="not the start of a plain Kafka frame"), proxy:
        speak_tls(proxy)


def speak_tls(proxy: KafkaProxy) -> None:
    host, _, port = proxy.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"\x16\x03\x01 a TLS handshake")
        assert client.recv(1) == b"", "the proxy should close the connection"


def test_an_incomplete_last_frame_is_dropped() -> None:
    stream = io.BytesIO(b"\0\0\0\2ab\0\0\0\5abc")
    assert list(read_frames(stream)) == [b"ab"]


def test_a_response_that_is_not_decoded_passes_unchanged() -> None:
    fetch = Request(b"\0\1\0\x0b\0\0\0\7\0\3abc")
    assert (fetch.client_id, fetch.transactional_ids, fetch.committed) == ("abc", (), None)
    assert Response(b"\0\0\0\7...", fetch).readdressed(lambda *_: ("", 0)) == b"\0\0\0\7..."


def request_of(api: Api, version: int) -> Request:
    """Return a request that consists only of its header, with correlation id 7 and no client id."""
    return Request(struct.pack(">hhih", api, version, 7, -1))


@pytest.mark.parametrize("kind", [ProduceResponse, FetchResponse])
def test_a_new_leaders_address_in_a_refusal_is_rewritten(kind: Any) -> None:
    """From the versions below on, a refusal names the new leader (KIP-951).

    Without the rewrite, the client would bypass the proxy and connect to that leader directly.
    """
    version = {ProduceResponse: 10, FetchResponse: 16}[kind]
    leader = kind.NodeEndpoint(version=version, node_id=1, host="real", port=9093, rack=None)
    refusal = kind(version=version, throttle_time_ms=0, responses=[], node_endpoints=[leader])
    refusal.with_header(correlation_id=7)
    response = Response(bytes(refusal.encode(header=True)), request_of(Api(kind.API_KEY), version))
    rewritten = Response(response.readdressed(lambda host, port: (f"front-of-{host}", port + 1)), response.request)
    assert [(row.host, row.port) for row in rewritten.body.node_endpoints] == [("front-of-real", 9094)]


def test_an_error_in_any_part_of_a_response_counts_as_the_error_of_the_response() -> None:
    refused = struct.pack(">ibib2sbihbbb", 7, 0, 0, 2, b"\x02t", 2, 0, 47, 0, 0, 0)
    assert Response(refused, request_of(Api.ADD_PARTITIONS_TO_TXN, 3)).error in FENCED


def test_a_rule_that_watches_requests_does_not_displace_another_rule(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    watched = proxy.on(Api.END_TXN, transactional_id=name).watch()
    dropped = proxy.on(Api.END_TXN, transactional_id=name).drop_request()
    commit(producer, topic, "once")
    assert watched.wait() is dropped.wait()
    assert (watched.injected, dropped.injected, dropped.wait().fault) == (0, 1, Fault.DROP_REQUEST)


def commit_held(proxy: KafkaProxy, topic: str, name: str) -> None:
    producer = producer_of(proxy, name)
    held = proxy.on(Api.END_TXN, transactional_id=name).hold(longest_s=0.2)
    commit(producer, topic, "late")
    assert held.wait().answer() == "NONE"


def test_the_proxy_reports_a_forgotten_hold_when_it_is_closed(kafka: KafkaService, name: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    proxy = KafkaProxy(kafka.bootstrap_servers)
    with pytest.raises(AssertionError, match=r"not released in time: .*HOLD_REQUEST"), proxy:
        commit_held(proxy, topic, name)
    assert committed(kafka.bootstrap_servers, topic) == Counter(["late"])


def test_list_and_describe_requests_are_recorded_with_their_responses(proxy: KafkaProxy, name: str) -> None:
    client = TransactionClient({"bootstrap_servers": [proxy.bootstrap_servers]})
    try:
        client.list_open(name)
        client.describe([name])
    finally:
        client.close()
    assert {exchange.answer() for exchange in proxy.recorded(Api.LIST_TRANSACTIONS)} == {"NONE"}
    assert [exchange.answer() for exchange in proxy.recorded(Api.DESCRIBE_TRANSACTIONS, name)] == [
        "TransactionalIdNotFoundError"
    ]
