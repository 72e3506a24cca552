"""A broker that throttles the driver's requests, as with a quota on ``request_percentage``."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import kafka
import pytest
from kafka.protocol.admin import AlterClientQuotasRequest

from tests.live.pipeline import Tasks
from tests.live.rules.schedules import playing
from tests.live.services import KafkaService
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.kafka.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.integration.services.kafka import LocalKafka

TASKS = 8
#: Only the transaction requests are throttled. A quota for all clients would also hold back the rows.
THROTTLED = f"kafka-python-{kafka.__version__}"


def limit(servers: str) -> None:
    """Do what `kafka-configs --alter --add-config request_percentage=…` does for the driver's kafka-python clients."""
    request = AlterClientQuotasRequest
    entry = request.EntryData(
        entity=[request.EntryData.EntityData(entity_type="client-id", entity_name=THROTTLED)],
        ops=[request.EntryData.OpData(key="request_percentage", value=0.01, remove=False)],
    )
    config = {**KafkaSink(name="quotas", bootstrap_servers=servers).committing_config(), "client_id": "another"}
    with contextlib.closing(BrokerConnection(config)) as brokers:
        [response] = brokers.send_all([(request(entries=[entry], validate_only=False),)])
    assert [entry.error_code for entry in response.entries] == [0]


@pytest.mark.whole
def test_a_throttled_driver_writes_each_batch_once(
    fresh_kafka: LocalKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """kafka-python rejects requests on a throttled connection, and the rejected request would fail the attempt."""
    caplog.set_level(logging.WARNING, "kafka.net.connection")
    with playing(KafkaService(fresh_kafka.bootstrap_servers), tmp_path) as play:
        limit(fresh_kafka.bootstrap_servers)
        driver = play.driver()
        for batch in range(2):
            engine = Tasks(play, [[f"{batch}-{task}"] for task in range(TASKS)])
            driver.process(play.batch(batch), engine)
            assert engine.prepared == 1
        assert sum(play.visible().values()) == 2 * TASKS
    assert "throttled by broker" in caplog.text
