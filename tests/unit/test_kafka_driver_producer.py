"""The options of the drivers' producer, whatever options the user sets."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from twopc.sinks.kafka import decision_log, driver_producer
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings(name="s", bootstrap_servers="127.0.0.1:1", topic="t")


def config_of_driver(
    options: dict[str, str], defaults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The options of the drivers' producer."""
    given: dict[str, str] = {}

    def producer(config: dict[str, str], **_: object) -> Any:
        given.update(config)
        return SimpleNamespace(init_transactions=lambda _: None)

    monkeypatch.setattr(driver_producer, "Producer", producer)
    monkeypatch.setattr(driver_producer, "connect", lambda *_, **__: 1)
    DriverProducer(dataclasses.replace(SETTINGS, options=options), defaults)
    return given


@pytest.mark.parametrize(("theirs", "lives_ms"), [({}, "60000"), ({"kafka.transaction.timeout.ms": "20000"}, "20000")])
def test_the_options_required_for_slow_commits_override_those_of_the_user(
    theirs: dict[str, str], lives_ms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry that comes sooner would pass for a first request. A driver's transaction does not outlive that of a task."""
    options = {"kafka.retry.backoff.ms": "1", "kafka.retry.backoff.max.ms": "2", **theirs}
    given = config_of_driver(options, {}, monkeypatch)
    assert int(given["retry.backoff.ms"]) * 0.8 > decision_log._SLOW_COMMIT_S * 1000
    assert int(given["retry.backoff.max.ms"]) >= int(given["retry.backoff.ms"])
    assert given["transaction.timeout.ms"] == given["message.timeout.ms"] == lives_ms


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "10000"),
        ({"kafka.transaction.timeout.ms": "5000"}, "5000"),
        ({"kafka.socket.timeout.ms": "120000"}, "60000"),
        ({"kafka.queue.buffering.max.messages": "1"}, "10000"),
    ],
)
def test_librdkafka_accepts_the_drivers_options_along_with_any_user_options(
    options: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: librdkafka refused a transaction timeout shorter than the socket timeout, and named neither setting."""
    given = config_of_driver(options, {"socket.timeout.ms": "10000"}, monkeypatch)
    assert given["socket.timeout.ms"] == expected
    assert int(given["queue.buffering.max.messages"]) > 1000  # all parts of a large record must fit into this queue
    confluent_kafka.Producer({**given, "bootstrap.servers": "", "log_level": 0})
