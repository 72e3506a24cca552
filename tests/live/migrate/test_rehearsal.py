"""`twopc migrate rehearse`: a complete migration on real brokers, which counts every record; and its judge."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from rich.console import Console

from twopc.integration.migrate.rehearsal import topics
from twopc.integration.migrate.rehearsal.report import facts, is_passed, show
from twopc.integration.migrate.rehearsal.steps import Rehearsal, Step, new_source
from twopc.integration.migrate.rehearsal.topics import LiveReader, Output, Record, moved_keys
from twopc.integration.migrate.rehearsal.ways import NOT_RUN, Scale
from twopc.integration.services import ServiceError
from twopc.testing.kill_loop.records import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.live.services import KafkaService

_TIMEOUT_S = 60
COMMAND = [sys.executable, "-m", "twopc.integration", "migrate", "rehearse", "--json"]
AFTER_THE_CUT_OVER = ("the new sink, killed", "the old sink again")


def rehearsed(seed: int, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, "--seed", str(seed), *words], capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return dict(json.loads(done.stdout))


def require_exact(steps: list[dict[str, Any]]) -> None:
    by_name = {step["name"]: step for step in steps}
    old = by_name["the old sink, killed"]
    assert old["lost"] == 0
    assert old["doubled"] > 0
    for name in AFTER_THE_CUT_OVER:
        assert (by_name[name]["lost"], by_name[name]["doubled"]) == (0, 0), steps
    assert not [step for step in steps if step["problem"]]
    assert by_name["a reader, throughout"]["records"] == by_name["the old sink again"]["records"]


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_a_short_rehearsal_to_another_cluster_is_exact(add_summary: Callable[[str], None]) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    add_summary(f"seed {seed}")
    report = rehearsed(seed, "--way", "another-cluster", "--kills", "1", "--batch-rows", "20")
    assert (report["passed"], report["seed"], report["not_run"]) == (True, seed, NOT_RUN)
    steps = report["ways"]["another-cluster"]
    require_exact(steps)
    page = (Path(__file__).parents[3] / "docs" / "migration-rehearsal.md").read_text()
    assert [step["name"] for step in steps if step["name"] not in page] == []


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_the_whole_rehearsal_is_exact(add_summary: Callable[[str], None]) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    add_summary(f"seed {seed}")
    report = rehearsed(seed)
    assert set(report["ways"]) == {"another-cluster", "upgrade"}
    for steps in report["ways"].values():
        require_exact(steps)
    versions = [step["name"] for step in report["ways"]["upgrade"] if step["name"].startswith("upgrade to ")]
    assert versions[-1] == "upgrade to 4.3.0, KRaft"


class NotYetLeader:
    """A consumer of a broker that has just started: the metadata names the broker as the leader before it can serve requests."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def get_watermark_offsets(self, where: TopicPartition, _timeout_s: float) -> tuple[int, int]:
        self.asked.append(where.partition)
        if self.asked.count(where.partition) == 1:
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return 0, 10 + where.partition


def test_a_request_for_a_partition_whose_leader_is_not_ready_yet_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """This happened in a rehearsal with seed 96907, after an upgrade of its broker."""
    consumer = NotYetLeader()
    monkeypatch.setattr(topics, "_consumer", lambda *_: contextlib.nullcontext(consumer))
    monkeypatch.setattr(Output, "_await_leaders", lambda *_: None)
    assert Output("here", "topic", 2).ends() == {0: 10, 1: 11}
    assert sorted(consumer.asked) == [0, 0, 1, 1]


# -- the judge ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def rehearsal(kafka: KafkaService, tmp_path: Path) -> Rehearsal:
    """A source that was fed 20 records; nothing is written."""
    name = f"r{uuid.uuid4().hex[:10]}"
    output = Output(kafka.bootstrap_servers, f"{name}-out", 2)
    output.create()
    source = new_source(kafka.bootstrap_servers, f"{name}-in")
    source.feed(range(20))
    return Rehearsal(directory=tmp_path, source=source, output=output, seed=1, batch_rows=10)


def write(output: Output, numbers: Iterable[int], **config: str) -> Producer:
    """With a transactional.id, the transaction stays open."""
    producer = Producer(
        {
            "bootstrap.servers": output.servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "log_level": 0,
            **config,
        }
    )
    if config:
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
    for number in numbers:
        producer.produce(output.topic, str(number), key_of(number))
    assert producer.flush(_TIMEOUT_S) == 0
    return producer


def judged(rehearsal: Rehearsal) -> Step:
    rehearsal._count("a step", "something was done")
    return rehearsal.steps[-1]


def test_a_faithful_output_passes(rehearsal: Rehearsal) -> None:
    write(rehearsal.output, range(20))
    step = judged(rehearsal)
    assert (step.records, step.lost, step.doubled, step.problem) == (20, 0, 0, "")


def test_a_lost_and_a_duplicated_record_do_not_cancel_out(rehearsal: Rehearsal) -> None:
    write(rehearsal.output, [*range(19), 3])
    step = judged(rehearsal)
    assert (step.records, step.lost, step.doubled) == (20, 1, 1)
    assert "NOT exactly once" in step.problem


def test_duplicates_from_before_the_cutover_are_accepted_but_a_third_copy_is_reported(rehearsal: Rehearsal) -> None:
    write(rehearsal.output, [*range(20), 3])
    rehearsal._expected[3] = 2
    assert not judged(rehearsal).problem
    write(rehearsal.output, [3])
    assert judged(rehearsal).doubled == 1


def test_a_key_in_two_partitions_is_reported(rehearsal: Rehearsal) -> None:
    write(rehearsal.output, range(20))
    producer = Producer({"bootstrap.servers": rehearsal.output.servers, "log_level": 0})
    elsewhere = 1 - next(record.partition for record in rehearsal.output.records() if record.key == "key-0")
    producer.produce(rehearsal.output.topic, "20", "key-0", elsewhere)
    assert producer.flush(_TIMEOUT_S) == 0
    rehearsal.source.feed(range(20, 21))
    step = judged(rehearsal)
    assert (step.lost, step.doubled, step.problem) == (0, 0, "keys in several partitions: key-0")
    assert moved_keys([Record(0, 0, "a", 1), Record(0, 1, "a", 2), Record(1, 0, "b", 3)]) == []


def test_a_transaction_left_open_is_reported(rehearsal: Rehearsal) -> None:
    write(rehearsal.output, range(20))
    left_open = write(rehearsal.output, [7], **{"transactional.id": rehearsal.output.topic})
    step = judged(rehearsal)
    assert (step.doubled, step.problem) == (0, "1 offset is behind transactions that were left open")
    left_open.abort_transaction(_TIMEOUT_S)


def test_a_record_that_the_query_was_never_given_ends_the_rehearsal(rehearsal: Rehearsal) -> None:
    producer = Producer({"bootstrap.servers": rehearsal.output.servers, "log_level": 0})
    producer.produce(rehearsal.output.topic, "another", "key-0")
    assert producer.flush(_TIMEOUT_S) == 0
    with pytest.raises(ServiceError, match="was never in the query's input"):
        judged(rehearsal)


def test_the_reader_receives_only_committed_records(rehearsal: Rehearsal) -> None:
    output = rehearsal.output
    reader = LiveReader(output)
    write(output, range(5), **{"transactional.id": f"{output.topic}-a"}).abort_transaction(_TIMEOUT_S)
    write(output, range(10), **{"transactional.id": f"{output.topic}-b"}).commit_transaction(_TIMEOUT_S)
    write(output, range(5), **{"transactional.id": f"{output.topic}-a"}).abort_transaction(_TIMEOUT_S)
    seen = reader.finish()
    assert sorted(record.number for record in seen) == list(range(10))
    assert sorted(seen) == sorted(output.records())


def test_a_problem_fails_the_rehearsal_and_appears_in_both_reports() -> None:
    good = Step(name="brokers", done="started")
    bad = Step(name="the new sink, killed", done="killed", records=21, lost=0, doubled=1, problem="NOT exactly once")
    scale = Scale(seed=7, kills=1, batch_rows=10)
    assert is_passed({"a": [good]})
    assert not is_passed({"a": [good], "b": [good, bad]})
    assert facts(scale, {"b": [bad]}, 1.0)["passed"] is False
    console = Console(record=True, width=200)
    show(console, scale, {"b": [good, bad]}, 1.0)
    text = console.export_text()
    assert "NOT exactly once" in text
    assert "FAILED" in text
    assert all(what in text for what in NOT_RUN)
