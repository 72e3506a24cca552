"""Brokers that allow less than Kafka's defaults: shorter transactions, fewer rights, fewer brokers than replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.schedules import crash, playing
from tests.live.services import KafkaService
from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import ledger_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHORT = {"kafka.transaction.timeout.ms": "20000"}


@pytest.fixture(scope="module")
def strict() -> Iterator[KafkaService]:
    """A broker that allows transactions of 30 s."""
    with LocalKafka(properties={"transaction.max.timeout.ms": "30000"}) as kafka:
        yield KafkaService(kafka.bootstrap_servers, kafka)


def test_a_query_and_its_sweep_respect_a_broker_with_a_shorter_transaction_maximum(
    strict: KafkaService, tmp_path: Path
) -> None:
    """Caught mutations: the driver's own transaction may last a minute; the sweep's InitProducerId asks for a minute."""
    with playing(strict, tmp_path, options=SHORT) as play:
        crash(play.driver(), play, 0, [["x"]], "driver.confirmed")
        assert play.open_transactions()
        play.driver().process(play.batch(0), Tasks(play, [["0"]]))
        assert play.open_transactions() == ()
        play.driver().process(play.batch(1), Tasks(play, [["1"]]))
        assert play.visible() == {"0": 1, "1": 1}


def test_a_transaction_longer_than_the_brokers_maximum_is_refused_until_one_of_the_two_settings_is_changed(
    strict: KafkaService, tmp_path: Path
) -> None:
    with playing(strict, tmp_path) as play:
        both = r"kafka\.transaction\.timeout\.ms .*exceeds the brokers' transaction\.max\.timeout\.ms"
        with pytest.raises(ConfigurationError, match=both):
            play.driver().process(play.batch(0), Tasks(play, [["0"]]))
        play.sink = type(play.sink)(
            name=play.name, bootstrap_servers=play.bootstrap_servers, topic=play.topic, options=SHORT, timeout_ms=10_000
        )
        play.driver().process(play.batch(0), Tasks(play, [["0"]]))
        assert play.visible() == {"0": 1}


def test_a_ledger_is_not_created_with_fewer_replicas_while_brokers_are_down_but_can_be_created_by_hand(
    strict: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caught mutation: the ledger permanently has only as many replicas as there were running brokers."""
    with playing(strict, tmp_path, options=SHORT) as play:
        with monkeypatch.context() as patched:
            patched.setattr(ledger_topic, "TRANSACTION_LOG", "a-transaction-log-that-is-not-shown")
            refusal = f"{play.sink.ledger} cannot be created with 3 replicas.*Start the missing brokers.*9 partitions and cleanup"
            with pytest.raises(RetriableError, match=refusal):
                play.driver().process(play.batch(0), Tasks(play, [["0"]]))
            create_topic(play.bootstrap_servers, play.sink.ledger, 9, dict(ledger_topic._REQUIRED))
            play.driver().process(play.batch(0), Tasks(play, [["0"]]))
        assert play.visible() == {"0": 1}


def test_a_ledger_is_created_with_as_many_replicas_as_the_transaction_log_but_at_most_three() -> None:
    def replicas(*assigned: int) -> int:
        partitions = [SimpleNamespace(replicas=[0] * count) for count in assigned]
        future = SimpleNamespace(result=lambda: SimpleNamespace(partitions=partitions))
        admin: Any = SimpleNamespace(describe_topics=lambda *_, **__: {"": future})
        return ledger_topic.LedgerTopic(admin, "ledger", timeout_ms=1)._replicas()

    assert [replicas(*assigned) for assigned in [(), (1, 1), (3, 2), (3,), (5, 5)]] == [3, 1, 2, 3, 3]
