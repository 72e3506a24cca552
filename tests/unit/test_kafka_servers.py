"""The argument ``bootstrap_servers``, as people write it."""

from __future__ import annotations

import pytest

from twopc.errors import ConfigurationError
from twopc.sinks.kafka import KafkaSink


def sink(servers: str, protocol: str = "PLAINTEXT") -> KafkaSink:
    return KafkaSink(
        name="s", bootstrap_servers=servers, topic="t", options={"kafka.security.protocol": protocol}, timeout_ms=1000
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a:1", ["a:1"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        (" a:1 ,\n b:2 ", ["a:1", "b:2"]),
        ("a:1,,b:2,", ["a:1", "b:2"]),
        ("a:1,b:2,a:1", ["a:1", "b:2"]),
        ("broker", ["broker"]),
        ("PLAINTEXT://a:1", ["a:1"]),
        ("plaintext://a:1", ["a:1"]),
        ("EXTERNAL://a:1,b:2", ["a:1", "b:2"]),
        ("[::1]:9092", ["[::1]:9092"]),
        ("[::1]", ["[::1]"]),
        ("::1", ["::1"]),
        ("PLAINTEXT://[fe80::1%eth0]:9092", ["[fe80::1%eth0]:9092"]),
    ],
)
def test_both_clients_are_given_the_same_servers(written: str, read: list[str]) -> None:
    described = sink(written)
    assert described.committing_config()["bootstrap_servers"] == read
    for config in (described.producer_config(), described.connection_config(), described.plain_config()):
        assert config["bootstrap.servers"] == ",".join(read)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("", "does not name a broker"),
        (" , ,", "does not name a broker"),
        ("a:abc,b:2", "'a:abc' is not host:port"),
        ("a:0", "'a:0' is not host:port"),
        ("a:65536", "'a:65536' is not host:port"),
        ("a:", "'a:' is not host:port"),
        (":9092", "':9092' is not host:port"),
        ("b:2,[::1", r"'\[::1' is not host:port. An IPv6 address needs brackets"),
        ("[::1]9092", r"'\[::1\]9092' is not host:port"),
        ("PLAINTEXT://", "'PLAINTEXT://' is not host:port"),
        ("SASL_SSL://a:1", r"'SASL_SSL://a:1' is for SASL_SSL, but kafka\.security\.protocol is PLAINTEXT"),
        ("a:1,ssl://b:2", r"'ssl://b:2' is for SSL, but kafka\.security\.protocol is PLAINTEXT"),
    ],
)
def test_an_invalid_server_is_rejected_at_once_with_an_error_that_identifies_it(written: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        sink(written)


def test_a_protocol_prefix_of_a_server_is_accepted_if_it_matches_the_options() -> None:
    assert sink("SSL://a:1", "ssl").servers() == ("a:1",)
