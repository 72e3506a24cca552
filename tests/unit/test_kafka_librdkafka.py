"""The librdkafka that is used directly, and its reports."""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import confluent_kafka
import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.sinks.kafka import librdkafka as c
from twopc.sinks.kafka.librdkafka_producer import LibrdkafkaProducer, accepts
from twopc.sinks.kafka.librdkafka_reports import facts_of
from twopc.sinks.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    c.library.cache_clear()
    yield
    c.library.cache_clear()


def test_the_installed_librdkafka_is_used() -> None:
    assert c.library() is not None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (SimpleNamespace(rd_kafka_version=lambda: 0x030000FF), "not version 2"),
        (SimpleNamespace(rd_kafka_version=lambda: 0x020500FF), "rd_kafka_conf_new"),
        (SimpleNamespace(), "rd_kafka_version"),
    ],
    ids=["another version", "no such function", "another library"],
)
def test_another_library_is_detected_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, found: Any, why: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _path: found)
    assert [c.library(), c.library()] == [None, None]
    (line,) = caplog.messages
    assert why in line


def test_a_library_that_cannot_be_loaded_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(confluent_kafka.cimpl, "__file__", "/nowhere/cimpl.so")
    assert c.library() is None
    assert "/nowhere/cimpl.so" in caplog.text


def test_options_that_confluent_kafka_itself_handles_are_not_passed_to_librdkafka() -> None:
    def accepted(**options: Any) -> bool:
        named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
        return accepts(KafkaSettings(name="s", bootstrap_servers="b:1", options=named).producer_config())

    assert accepted()
    assert accepted(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")  # noqa: S106
    assert not accepts({"oauth_cb": print})
    assert not accepts({"plugin.library.paths": "monitoring-interceptor"})
    assert not accepts({"sasl.oauthbearer.config": "x"})


def test_an_option_unknown_to_librdkafka_is_refused_and_the_error_gives_the_reason() -> None:
    with pytest.raises(KafkaException, match="No such configuration property") as caught:
        LibrdkafkaProducer(
            c._load(), {"no.such": "option"}, delivered=Counter(), on_error=print, on_statistics=None, logger=logger
        )
    assert caught.value.args[0].code() == KafkaError._INVALID_ARG


def reports(*facts: tuple[int, int, int]) -> Any:
    """Structures as librdkafka hands them over, with padding that is not zero."""
    messages = (c.Message * len(facts))()
    ctypes.memset(messages, 0xFF, ctypes.sizeof(messages))
    for message, (error, topic, partition) in zip(messages, facts, strict=True):
        message.err, message.topic, message.partition = error, topic, partition
    return messages


def test_reports_are_counted_by_error_and_topic_and_partition() -> None:
    """Caught mutations: padding is read with the error; only the first report of an event is read."""
    kept = reports((0, 2**47, 3), (0, 2**47, 3), (-191, 2**47, 3), (0, 2**47, -1), (0, 8, 3))
    size = ctypes.sizeof(c.Message)
    addresses = np.array([ctypes.addressof(kept) + size * place for place in (4, 0, 2, 3, 1)], np.uintp)
    assert dict(facts_of(addresses)) == {(0, 2**47, 3): 2, (-191, 2**47, 3): 1, (0, 2**47, -1): 1, (0, 8, 3): 1}
    assert facts_of(addresses[[1, 4]]) == [((0, 2**47, 3), 2)]
    assert facts_of(addresses[:0]) == []
