"""The proxy itself, on a real broker: it changes nothing unless told, and then exactly the request that was named."""

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

from sinks.kafka.transactions import TransactionClient
from tests.live.pipeline import create_topic
from tests.live.rules.schedules import until
from tests.nemesis.frames import FENCED, Api, Request, Response, read_frames
from tests.nemesis.proxy import KafkaProxy
from tests.nemesis.rules import LONGEST_HOLD_S, Fault
from tests.reader import committed

if TYPE_CHECKING:
    from typing import Any

    from tests.live.services import KafkaService
    from tests.nemesis.rules import Exchange


@pytest.fixture
def name() -> str:
    return f"p{uuid.uuid4().hex[:10]}"


def producer_of(proxy: KafkaProxy, transactional_id: str, **config: Any) -> Producer:
    """A producer that asks again after a second without an answer."""
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


def assert_asked_again_until_complete(ends: list[Exchange]) -> None:
    """A broker that has acted says CONCURRENT_TRANSACTIONS until the markers are written: that is asked again, too."""
    *early, last = [(end.fault, end.answer()) for end in ends]
    assert set(early) <= {(None, "ConcurrentTransactionsError")}
    assert last == (None, "NONE")


def test_what_is_not_named_passes_untouched_in_both_directions(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(proxy.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    values = [f"{number}-{'x' * number}" for number in range(200)]
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(10)
    assert committed(proxy.bootstrap_servers, topic) == committed(kafka.bootstrap_servers, topic) == Counter(values)
    assert proxy.injected == 0
    [end] = proxy.recorded(Api.END_TXN, name)
    assert (end.answer(), end.request.committed, end.request.client_id) == ("NONE", True, "rdkafka")
    began = proxy.recorded(Api.INIT_PRODUCER_ID, name)[-1]  # a new cluster's coordinator lets it ask again
    assert began.response is not None
    assert end.request.body.producer_id == began.response.body.producer_id


def test_clients_learn_no_address_but_the_proxys(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    """A broker's own address in an answer would lead its client around the proxy."""
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


def test_exactly_the_named_request_is_hit(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    """The second commit of one of two producers; every other request reaches the broker once."""
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


def test_an_answer_that_is_dropped_was_given(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    proxy.on(Api.END_TXN, transactional_id=name).drop_response()
    commit(producer, topic, "once")
    first, *again = proxy.recorded(Api.END_TXN, name)
    assert (first.fault, first.answer()) == (Fault.DROP_RESPONSE, "NONE")
    assert_asked_again_until_complete(again)
    assert committed(kafka.bootstrap_servers, topic) == Counter(["once"])


@pytest.mark.parametrize("answered", [False, True])
def test_a_connection_breaks_before_or_after_the_broker_has_acted(
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
    assert_asked_again_until_complete(again)
    assert committed(kafka.bootstrap_servers, topic) == Counter(["once"])


def test_a_held_request_arrives_although_its_client_has_given_up(
    kafka: KafkaService, proxy: KafkaProxy, name: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    write(producer, topic, "late")
    held = proxy.on(Api.END_TXN, transactional_id=name).hold()
    with pytest.raises(KafkaException):
        producer.commit_transaction(0.2)
    late = held.wait()
    del producer  # and with it the connection
    assert committed(kafka.bootstrap_servers, topic) == Counter()
    assert late.response is None
    held.release()
    assert late.answer() == "NONE"


def test_a_delay_is_one_of_the_request_or_of_its_answer(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    for arm in (proxy.on(Api.END_TXN, transactional_id=name).delay, proxy.on(Api.END_TXN).delay_response):
        rule = arm(0.3)
        began = time.monotonic()
        commit(producer, topic, "slow")
        assert 0.3 <= time.monotonic() - began < 1
        assert rule.injected == 1
    assert committed(kafka.bootstrap_servers, topic) == Counter({"slow": 2})


def test_a_replayed_request_is_judged_by_the_broker_anew(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    producer = producer_of(proxy, name)
    commit(producer, topic, "once")
    [end] = proxy.recorded(Api.END_TXN, name)
    assert until(lambda: proxy.replay(end) == "NONE")  # a repeated commit is idempotent, once it is complete
    producer_of(proxy, name)
    assert proxy.replay(end) in FENCED
    assert len(proxy.recorded(Api.END_TXN, name)) == 1, "a replay is no client's request"


def test_a_schedule_that_was_not_played_fails(proxy: KafkaProxy, name: str) -> None:
    rule = proxy.on(Api.END_TXN, transactional_id=name).hold()
    with pytest.raises(AssertionError, match="was met 0 times"):
        rule.wait(0.01)


def test_leaving_lets_go_what_is_held(kafka: KafkaService, name: str) -> None:
    """Whatever a schedule forgets, its test ends."""
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


def test_what_is_no_plain_kafka_is_told_where_the_proxy_is_left(kafka: KafkaService) -> None:
    """A client that speaks TLS to it: nothing was tested, and nobody would know."""
    proxy = KafkaProxy(kafka.bootstrap_servers)
    with pytest.raises(ValueError, match="no plain Kafka frame"), proxy:
        speak_tls(proxy)


def speak_tls(proxy: KafkaProxy) -> None:
    host, _, port = proxy.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"\x16\x03\x01 a TLS handshake")
        assert client.recv(1) == b"", "the proxy hangs up"


def test_a_frame_that_was_cut_off_is_none() -> None:
    stream = io.BytesIO(b"\0\0\0\2ab\0\0\0\5abc")
    assert list(read_frames(stream)) == [b"ab"]


def test_an_answer_to_what_is_not_decoded_passes_as_it_came() -> None:
    fetch = Request(b"\0\1\0\x0b\0\0\0\7\0\3abc")
    assert (fetch.client_id, fetch.transactional_ids, fetch.committed) == ("abc", (), None)
    assert Response(b"\0\0\0\7...", fetch).readdressed(lambda *_: ("", 0)) == b"\0\0\0\7..."


def request_of(api: Api, version: int) -> Request:
    """Its header alone, correlation id 7, no client id."""
    return Request(struct.pack(">hhih", api, version, 7, -1))


@pytest.mark.parametrize("kind", [ProduceResponse, FetchResponse])
def test_the_address_of_a_new_leader_is_the_proxys_too(kind: Any) -> None:
    """A refusal tells it from these versions on (KIP-951): the client would go there past the proxy."""
    version = {ProduceResponse: 10, FetchResponse: 16}[kind]
    leader = kind.NodeEndpoint(version=version, node_id=1, host="real", port=9093, rack=None)
    refusal = kind(version=version, throttle_time_ms=0, responses=[], node_endpoints=[leader])
    refusal.with_header(correlation_id=7)
    response = Response(bytes(refusal.encode(header=True)), request_of(Api(kind.API_KEY), version))
    told = Response(response.readdressed(lambda host, port: (f"front-of-{host}", port + 1)), response.request)
    assert [(row.host, row.port) for row in told.body.node_endpoints] == [("front-of-real", 9094)]


def test_the_error_of_a_part_is_the_answers_error() -> None:
    refused = struct.pack(">ibib2sbihbbb", 7, 0, 0, 2, b"\x02t", 2, 0, 47, 0, 0, 0)
    assert Response(refused, request_of(Api.ADD_PARTITIONS_TO_TXN, 3)).error in FENCED


def test_who_watches_takes_nobodys_turn(kafka: KafkaService, proxy: KafkaProxy, name: str) -> None:
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


def test_what_is_held_and_forgotten_is_told_where_the_proxy_is_left(kafka: KafkaService, name: str) -> None:
    topic = create_topic(kafka.bootstrap_servers, name)
    proxy = KafkaProxy(kafka.bootstrap_servers)
    with pytest.raises(AssertionError, match=r"not released in time: .*HOLD_REQUEST"), proxy:
        commit_held(proxy, topic, name)
    assert committed(kafka.bootstrap_servers, topic) == Counter(["late"])


def test_open_transactions_that_are_asked_for_are_recorded_with_their_answers(proxy: KafkaProxy, name: str) -> None:
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
