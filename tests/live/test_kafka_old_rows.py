"""A row that is older than its topic's retention causes one warning, because the broker may delete the row soon."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.live.pipeline import create_topic
from twopc.sinks.kafka import KafkaSink, old_rows, topic_settings
from twopc.testing.contract import Driver

if TYPE_CHECKING:
    from tests.live.services import KafkaService

_DAY_MS = 86_400_000


def create(kafka: KafkaService, **config: str) -> str:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return create_topic(kafka.bootstrap_servers, f"old-{uuid.uuid4().hex}", 1, settings)


def sink_of(kafka: KafkaService, topic: str) -> KafkaSink:
    return KafkaSink(name=f"old-{uuid.uuid4().hex}", topic=topic, bootstrap_servers=kafka.bootstrap_servers)


def warnings(sink: KafkaSink, caplog: pytest.LogCaptureFixture, topic: str, *, age_ms: int) -> list[str]:
    at = pa.array([int(time.time() * 1000) - age_ms, None], pa.int64())
    rows = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": at})
    caplog.clear()
    for _ in range(2):
        old_rows.warn_of_old_rows(sink, rows, [topic])
    return [one.getMessage() for one in caplog.records if "retention.ms" in one.getMessage()]


@pytest.mark.parametrize(
    ("config", "age_days", "is_deleted"),
    [
        ({"retention_ms": "86400000"}, 2, True),
        ({"retention_ms": "86400000"}, 0.5, False),
        ({"retention_ms": "-1"}, 4_000, False),
        ({"retention_ms": "86400000", "cleanup_policy": "compact"}, 2, False),
        ({"retention_ms": "86400000", "cleanup_policy": "compact,delete"}, 2, True),
        ({"retention_ms": "86400000", "message_timestamp_type": "LogAppendTime"}, 2, False),
        ({}, 8, True),  # Kafka's default is seven days
    ],
)
def test_only_a_row_that_the_broker_may_delete_causes_a_warning(
    config: dict[str, str], age_days: float, kafka: KafkaService, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    topic = create(kafka, **config)
    found = warnings(sink_of(kafka, topic), caplog, topic, age_ms=int(age_days * _DAY_MS))
    assert len(found) == is_deleted, "one warning for each topic, not one for each batch"
    assert not found or f"the topic {topic} keeps records for only" in found[0]


@pytest.mark.parametrize("is_by_row", [False, True], ids=["one topic", "a topic for each row"])
def test_a_task_warns_of_its_old_rows(
    kafka: KafkaService, caplog: pytest.LogCaptureFixture, *, is_by_row: bool
) -> None:
    topic = create(kafka, retention_ms="86400000")
    sink = KafkaSink(
        name=f"old-{uuid.uuid4().hex}", topic=None if is_by_row else topic, bootstrap_servers=kafka.bootstrap_servers
    )
    at = pa.array([int(time.time() * 1000) - 2 * _DAY_MS], pa.int64())
    columns = {"topic": pa.array([topic])} if is_by_row else {}
    driver = Driver(sink)
    driver.begin()
    driver.prepare(pa.record_batch({"value": pa.array([b"a"]), "timestamp": at, **columns}))
    driver.close()
    [warning] = [one.getMessage() for one in caplog.records if "retention.ms" in one.getMessage()]
    assert f"2.0 days old, but the topic {topic} keeps records for only 1.0 days" in warning


def test_a_later_row_that_is_older_causes_the_warning(kafka: KafkaService, caplog: pytest.LogCaptureFixture) -> None:
    topic = create(kafka, retention_ms="86400000")
    sink = sink_of(kafka, topic)
    assert warnings(sink, caplog, topic, age_ms=_DAY_MS // 2) == []
    assert len(warnings(sink, caplog, topic, age_ms=2 * _DAY_MS)) == 1


def test_new_rows_cost_no_request(
    kafka: KafkaService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_settings, "AdminClient", None)
    assert warnings(sink_of(kafka, "any"), caplog, "any", age_ms=60_000) == []
