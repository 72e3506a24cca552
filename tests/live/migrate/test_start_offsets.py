"""``--start-offsets`` of ``twopc migrate cutover``: one line refuses offsets at which no batch can begin."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.live.pipeline import create_topic
from twopc.integration.cli import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1600000000000,"conf":{}}\n{"in":{"0":5}}'


def cutover(servers: str, checkpoint: Path, topic: str, starts: dict[str, dict[str, int]]) -> tuple[int, str]:
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"5f3c0a52-ea8b-4a5a-8a5e-0123456789ab"}')
    (checkpoint / "offsets" / "0").write_text(_OFFSETS)
    words = [
        "--sink",
        "starts",
        "--topic",
        topic,
        "--checkpoint",
        str(checkpoint),
        "--start-offsets",
        json.dumps(starts),
    ]
    result = CliRunner().invoke(app, ["migrate", "cutover", "--bootstrap-servers", servers, *words])
    return result.exit_code, result.output


@pytest.mark.parametrize("start", [-5, 1, 11])
def test_an_offset_that_the_partition_does_not_have_is_refused(start: int, kafka: KafkaService, tmp_path: Path) -> None:
    """From offsets after the end, every row would be written again. Before the first remaining record, nothing can be read."""
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, f"t{uuid.uuid4().hex[:10]}", 1)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result()
    code, output = cutover(servers, tmp_path / "checkpoint", topic, {topic: {"0": start}})
    assert code == 2
    assert f"offset {start} of {topic}[0] is outside 4 to 10" in output
    assert "Traceback" not in output


def test_a_topic_that_is_not_handed_over_is_refused(kafka: KafkaService, tmp_path: Path) -> None:
    """A misspelt name would leave the topic to its times."""
    topic = create_topic(kafka.bootstrap_servers, f"t{uuid.uuid4().hex[:10]}", 1)
    code, output = cutover(kafka.bootstrap_servers, tmp_path / "checkpoint", topic, {"misspelt": {"0": 0}})
    assert code == 2
    assert "--start-offsets names misspelt, but --topic does not" in output


def test_a_file_in_place_of_a_directory_is_reported_without_a_traceback(tmp_path: Path) -> None:
    """A disk that fails, or a directory that may not be read, is not a bug."""
    (tmp_path / "commits").write_text("no directory")
    code, output = cutover("127.0.0.1:1", tmp_path, "orders", {})
    assert code == 2
    assert "Not a directory" in output
    assert "Traceback" not in output
