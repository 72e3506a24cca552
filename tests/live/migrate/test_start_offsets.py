"""``twopc migrate cutover --start-offsets``: a one-line error rejects offsets at which no batch can begin."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc.integration.cli import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

_PLANNED_MS = 1_600_000_000_000


def planned(checkpoint: Path, *ends: int) -> None:
    """The checkpoint has one batch for each source offset, one every ten seconds, and the last batch is unfinished."""
    for directory in ("offsets", "commits", "sources/0"):
        (checkpoint / directory).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"5f3c0a52-ea8b-4a5a-8a5e-0123456789ab"}')
    (checkpoint / "sources" / "0" / "0").write_text('v1\n{"in":{"0":0}}')
    for batch_id, end in enumerate(ends):
        facts = {"batchWatermarkMs": 0, "batchTimestampMs": at_ms(batch_id), "conf": {}}
        lines = ["v1", json.dumps(facts), json.dumps({"in": {"0": end}})]
        (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))
        if batch_id < len(ends) - 1:
            (checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")


def at_ms(batch_id: int) -> int:
    return _PLANNED_MS + 10_000 * batch_id


def cutover(servers: str, checkpoint: Path, starts: dict[str, dict[str, int]] | None, *topics: str) -> tuple[int, str]:
    words = ["--sink", "starts", "--checkpoint", str(checkpoint)]
    for topic in topics:
        words += ["--topic", topic]
    if starts is not None:
        words += ["--start-offsets", json.dumps(starts)]
    result = CliRunner().invoke(app, ["migrate", "cutover", "--bootstrap-servers", servers, *words])
    return result.exit_code, result.output


def topic_with(servers: str, *times_ms: int) -> str:
    """A topic of one partition with a record for each time."""
    topic = create_topic(servers, f"t{uuid.uuid4().hex[:10]}", 1)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for time_ms in times_ms:
        producer.produce(topic, "value", timestamp=time_ms)
    assert producer.flush(60) == 0
    return topic


@pytest.mark.parametrize("start", [-5, 1, 11])
def test_an_offset_outside_the_partition_is_refused(start: int, kafka: KafkaService, tmp_path: Path) -> None:
    """From offsets after the end, every row would be written again. Before the first remaining record, nothing can be read."""
    servers = kafka.bootstrap_servers
    topic = topic_with(servers, *[_PLANNED_MS] * 10)
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result()
    planned(tmp_path, 5)
    code, output = cutover(servers, tmp_path, {topic: {"0": start}}, topic)
    assert code == 2
    assert f"offset {start} of {topic}[0] is outside the range 4 to 10" in output
    assert "Traceback" not in output


def test_start_offsets_for_a_topic_that_is_not_handed_over_are_refused(kafka: KafkaService, tmp_path: Path) -> None:
    """If the name is misspelled, the topic's offsets would be found by time."""
    topic = create_topic(kafka.bootstrap_servers, f"t{uuid.uuid4().hex[:10]}", 1)
    planned(tmp_path, 5)
    code, output = cutover(kafka.bootstrap_servers, tmp_path, {"misspelt": {"0": 0}}, topic)
    assert code == 2
    assert "--start-offsets names misspelt, but --topic does not" in output


def test_records_whose_timestamps_do_not_show_their_batches_are_refused(kafka: KafkaService, tmp_path: Path) -> None:
    """The old function sets event times, and its source lags.

    If the offsets were found by time, the output would seem to contain no row of the batch.
    """
    servers = kafka.bootstrap_servers
    topic = topic_with(servers, *(at_ms(batch_id) - 120_000 for batch_id in (0, 0, 1, 1)))
    planned(tmp_path, 2, 4)
    code, output = cutover(servers, tmp_path, None, topic)
    assert code == 2
    assert f"Batch 0 had input, but no record in {topic} has a timestamp" in " ".join(output.split())
    code, output = cutover(servers, tmp_path, {topic: {"0": 2}}, topic)
    assert code == 0
    assert "2 records were written, 1 of them duplicates" in output


@pytest.mark.parametrize("ends", [(0, 4), (4,)], ids=["an earlier batch without input", "no earlier batch"])
def test_records_of_earlier_batches_are_not_needed_if_no_earlier_batch_has_read_input(
    ends: tuple[int, ...], kafka: KafkaService, tmp_path: Path
) -> None:
    planned(tmp_path, *ends)
    code, output = cutover(kafka.bootstrap_servers, tmp_path, None, topic_with(kafka.bootstrap_servers))
    assert code == 0
    assert "0 records were written, 0 of them duplicates" in output


def test_the_offsets_of_one_topic_do_not_imply_those_of_another_topic(kafka: KafkaService, tmp_path: Path) -> None:
    servers = kafka.bootstrap_servers
    times = (at_ms(0), at_ms(1), at_ms(1) - 120_000)
    named, unnamed = topic_with(servers, *times), topic_with(servers, *times)
    planned(tmp_path, 2, 4)
    code, output = cutover(servers, tmp_path, {named: {"0": 1}}, named, unnamed)
    assert code == 2
    assert f"In {unnamed}, 1 record comes after the batch's first offset" in " ".join(output.split())
    code, _ = cutover(servers, tmp_path, {named: {"0": 1}, unnamed: {"0": 1}}, named, unnamed)
    assert code == 0


def test_a_file_in_place_of_a_directory_is_reported_without_a_traceback(tmp_path: Path) -> None:
    """A disk that fails, or a directory that may not be read, is not a bug."""
    (tmp_path / "commits").write_text("no directory")
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"5f3c0a52-ea8b-4a5a-8a5e-0123456789ab"}')
    code, output = cutover("127.0.0.1:1", tmp_path, {}, "orders")
    assert code == 2
    assert "Not a directory" in output
    assert "Traceback" not in output


def test_a_cut_over_says_that_retention_may_have_deleted_rows_of_the_batch(kafka: KafkaService, tmp_path: Path) -> None:
    """The batch wrote four rows, and the broker has deleted the first two of them and everything before. Seen: no word of it."""
    servers = kafka.bootstrap_servers
    topic = topic_with(servers, *(at_ms(batch_id) for batch_id in (0, 0, 1, 1, 1, 1)))
    planned(tmp_path, 2, 6)
    assert "deleted" not in cutover(servers, tmp_path, None, topic)[1]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result()
    code, output = cutover(servers, tmp_path, None, topic)
    assert code == 0
    assert f"has deleted records from {topic}[0]" in output and "TakeOver writes these rows again" in output


def test_a_cut_over_after_a_probe_takes_the_probes_records_for_nobodys_rows(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Step 2 of the guide comes before step 3. Seen: step 3 refused the probe's records, and advised --other-writers."""
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, f"t{uuid.uuid4().hex[:10]}", 1)
    planned(tmp_path, 5)
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    words = ["--sink", "starts", "--group", f"g{topic}", "--topic", topic, "--wait", "0"]
    probed = CliRunner().invoke(app, ["migrate", "probe", "--bootstrap-servers", servers, *words])
    assert probed.exit_code == 3, probed.output
    assert committed(servers, topic).total() == 1
    code, output = cutover(servers, tmp_path, None, topic)
    assert (code, "No batch is unfinished" in output) == (0, True), output
