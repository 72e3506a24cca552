"""An error names its cause even if librdkafka only reports that it gave up on a record, or that time ran out."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.live.broker_changes import delete_topic
from tests.live.spark_support import wait_until
from tests.live.ways import BOTH, Way
from twopc.errors import BadRecordError, ConfigurationError, FatalError, RetriableError, UnavailableError
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.handle import driver_id
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from tests.live.services import KafkaService


def rows() -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"v"] * 3, pa.binary())})


@BOTH
def test_a_deleted_ledger_is_not_mistaken_for_a_bad_record(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    options = {"kafka.topic.metadata.propagation.max.ms": "100", "kafka.allow.auto.create.topics": "false"}
    way = Way(kafka, monkeypatch, native=native, options=options, timeout_ms=4_000)
    writer = way.writer()
    writer.write(rows())
    delete_topic(way.servers, way.sink.ledger)
    with pytest.raises(ConfigurationError, match=f"the ledger {way.sink.ledger} no longer exists.*Restart the query"):
        writer.pre_commit()
    writer.abort()


#: As if this host's clock were behind: a record's time is the time of its produce(), and its transaction must begin before the
#: broker receives it.
REJECTS_NOW = {"message.timestamp.before.max.ms": "0"}


@BOTH
def test_an_error_about_a_time_from_this_hosts_clock_does_not_blame_a_column(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    way = Way(kafka, monkeypatch, native=native)
    way.change(way.topics[0], REJECTS_NOW)
    kind, text = way.error([rows()])
    assert kind is ConfigurationError, text
    assert "This host's clock" in text
    assert "column" not in text
    dated = rows().append_column("timestamp", pa.array([1_000] * 3, pa.int64()))
    kind, text = way.error([dated])
    assert kind is BadRecordError
    assert "the 'timestamp' column" in text


def test_an_error_about_the_time_of_a_ledger_record_blames_this_hosts_clock(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(kafka, monkeypatch, native=False)
    driver = DriverProducer(way.sink, {})
    way.change(way.sink.ledger, REJECTS_NOW)
    with pytest.raises(ConfigurationError, match=r"ledger.*This host's clock .*No row is lost.*Synchronize"):
        driver.write([(0, b"a decision")], point=None)


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ({"cleanup.policy": "compact"}, ConfigurationError, r"cleanup\.policy=delete.*at risk.*urgent"),
        ({"max.message.bytes": "1000"}, RetriableError, r"max\.message\.bytes.*Restart the query"),
    ],
    ids=["compacted", "small"],
)
def test_a_ledger_whose_settings_are_changed_during_the_run_is_not_mistaken_for_a_bad_row(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, config: dict[str, str], kind: type[Exception], said: str
) -> None:
    way = Way(kafka, monkeypatch, native=False)
    driver = DriverProducer(way.sink, {})
    way.change(way.sink.ledger, config)
    with pytest.raises(kind, match=said) as caught:
        driver.write([(0, b"a decision" * 1000)], point=None)
    assert caught.type is kind


@pytest.mark.whole
@BOTH
def test_the_error_for_an_id_forgotten_by_the_brokers_mentions_the_broker_setting(
    forgetful: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """Caught mutation: the error of a purged record is mistaken for the error of the transaction."""
    way = Way(forgetful, monkeypatch, native=native)
    driver, writer = DriverProducer(way.sink, {}), way.writer()
    client = TransactionClient(way.sink.committing_config())
    ids = [driver_id(way.name), writer._begun.transactional_id]
    wait_until(lambda: {one.error for one in client.describe(ids).values()} == {"TransactionalIdNotFoundError"}, "idle")
    client.close()
    with pytest.raises(RetriableError, match=r"transactional\.id\.expiration\.ms") as caught:  # noqa: PT012 - either call may raise it
        writer.write(rows())
        writer.pre_commit()
    assert "Purged" not in str(caught.value)
    with pytest.raises(FatalError, match=r"transactional\.id\.expiration\.ms") as refused:
        driver.write([(0, b"a decision")], point=None)
    assert "Purged" not in str(refused.value)


def test_the_error_for_an_unreachable_broker_contains_the_clients_log(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(kafka, monkeypatch, native=True, timeout_ms=2_000)
    away = dataclasses.replace(way.sink, name=f"s{uuid.uuid4().hex[:8]}", bootstrap_servers="127.0.0.1:1")
    way.sink = away
    kind, text = way.error([rows()])
    assert kind is UnavailableError
    assert "The client's log: " in text
    assert "Connection refused" in text
