"""Producers that are prepared in advance cost little while idle, and leave nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks.counting import transactional_ids
from tests.live.pipeline import create_topic
from tests.nemesis.proxy import KafkaProxy
from twopc.attempt import Attempt, TaskAttempt
from twopc.sinks.kafka import KafkaSink, identity, idle, librdkafka, producer_pool
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.producer import _warn_of_statistics, make_ready
from twopc.sinks.kafka.producer_pool import ProducerPool, drop_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.services import KafkaService
    from twopc.sinks.kafka.producer import ReadyProducer

BOTH = pytest.mark.parametrize("native", [True, False], ids=["native", "produce"])
DRIVER_EPOCH = 1


def clients() -> int:
    """How many librdkafka clients this process has: each has one main thread."""
    names = []
    for task in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # the thread has just ended
            names.append(task.read_text())
    return names.count("rdk:main\n")


def eventually(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def sink_of(kafka: KafkaService, *, partitions: int = 4) -> KafkaSink:
    name = f"i{uuid.uuid4().hex[:10]}"
    topic = create_topic(kafka.bootstrap_servers, name, partitions)
    create_topic(kafka.bootstrap_servers, f"twopc-ledger-{name}", 3)
    return KafkaSink(name=name, bootstrap_servers=kafka.bootstrap_servers, topic=topic)


def run_task(sink: KafkaSink, batch: int) -> ProducerPool:
    """Prepare a task's transaction."""
    task = TaskAttempt(
        query_id="q",
        batch_id=batch,
        attempt=Attempt(1, 1),
        partition=0,
        driver_epoch=DRIVER_EPOCH,
        committed_through=-1,
    )
    writer = sink.create_writer(task)
    writer.begin_transaction()
    writer.write(pa.record_batch({"value": pa.array([b"v"] * 10, pa.binary())}))
    writer.pre_commit()
    writer.hand_over()
    writer.close()
    return producer_pool._pools[sink.place]


def prepare(sink: KafkaSink) -> ProducerPool:
    """Prepare a task's transaction in each of two batches; then a producer is ready for the next one."""
    run_task(sink, 0)
    pool = run_task(sink, 1)
    eventually(lambda: len(pool._ready) == 1, "a producer is ready")
    return pool


def test_workers_that_live_for_one_batch_leave_one_id_for_each_task(kafka: KafkaService) -> None:
    """Spark stops a worker that is idle for a minute. The brokers keep each id for a week. Two producers per task were made."""
    sink = sink_of(kafka)
    for batch in range(3):
        pool = run_task(sink, batch)
        if (making := pool._making) is not None:
            making.join()
        del producer_pool._pools[sink.place]  # as if the worker had ended
    ids = {name for name in transactional_ids(kafka.bootstrap_servers) if name.startswith(f"{sink.name}.")}
    assert len(ids) == 3


@BOTH
def test_no_resources_are_left_of_a_dropped_pool(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    """The thread that serves idle producers has seen the pool. Caught mutation: that thread's variable keeps the pool."""
    monkeypatch.setattr("twopc.sinks.kafka.producer.librdkafka.library", librdkafka.library if native else lambda: None)
    monkeypatch.setattr(idle, "_EVERY_S", 0.01)
    idle._served.cache_clear()  # so that a new thread starts, which is not asleep yet
    served, serve = threading.Semaphore(0), ProducerPool.serve_idle

    def serve_and_say_so(pool: ProducerPool) -> None:
        serve(pool)
        served.release()

    monkeypatch.setattr(ProducerPool, "serve_idle", serve_and_say_so)
    gc.collect()
    before = clients()
    sink = sink_of(kafka)
    prepare(sink)
    assert clients() == before + 1
    assert served.acquire(timeout=30)
    assert served.acquire(timeout=30)
    drop_pool(sink.place, DRIVER_EPOCH)
    eventually(lambda: clients() == before, "no client is left")


def test_a_producer_still_being_created_ends_with_its_pool(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query ends immediately after its last batch. Caught mutation: a producer for a dropped pool is kept."""
    gc.collect()
    before = clients()
    sink = sink_of(kafka)
    pool = prepare(sink)
    pool.take(2, -1)  # takes a producer and drops it
    made, make = threading.Event(), pool._make

    def make_late(sequence: int) -> ReadyProducer:
        drop_pool(sink.place, DRIVER_EPOCH)
        ready = make(sequence)
        made.set()
        return ready

    monkeypatch.setattr(pool, "_make", make_late)
    pool.replenish(-1)
    assert made.wait(30)
    eventually(lambda: clients() == before, "no client is left")
    pool.replenish(-1)
    assert clients() == before
    assert pool._ready == []


def test_a_producer_unused_for_too_long_is_dropped(kafka: KafkaService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing tells a worker that a query has ended. The pool itself stays, because its ids must not be used twice."""
    gc.collect()
    before = clients()
    sink = sink_of(kafka)
    pool = prepare(sink)
    pool.serve_idle()
    assert clients() == before + 1
    monkeypatch.setattr(producer_pool, "_KEEP_S", 0.0)
    pool.serve_idle()
    eventually(lambda: clients() == before, "no client is left")
    first, second = pool.take(2, -1), pool.take(2, -1)
    assert first.transactional_id != second.transactional_id


def test_an_idle_driver_keeps_no_log_lines_while_its_cluster_is_away(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client logged 16 lines each second, and only the next decision read them."""
    sink = sink_of(kafka)
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        driver = DriverProducer(dataclasses.replace(sink, bootstrap_servers=proxy.bootstrap_servers), {})
    monkeypatch.setattr(idle, "_EVERY_S", 0.01)
    producer = driver._producer
    eventually(lambda: len(producer) > 0, "it logs that its cluster is away")  # before the thread's first round
    idle._served.cache_clear()
    idle.keep_serving(driver)
    for _ in range(3):
        eventually(lambda: len(producer) == 0, "the lines are read")
        time.sleep(0.3)


@BOTH
def test_an_idle_producer_logs_nothing(kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, *, native: bool) -> None:
    """Caught mutation: the idle producer collects statistics, whose size grows with the partitions of the output."""
    monkeypatch.setattr("twopc.sinks.kafka.producer.librdkafka.library", librdkafka.library if native else lambda: None)
    pool = prepare(sink_of(kafka, partitions=100))
    [ready] = pool._ready
    assert any(ready.producer.poll(0.3) == 0 for _ in range(5))  # log lines from its startup may still arrive


@BOTH
def test_a_librdkafka_with_different_log_messages_is_asked_for_its_statistics(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, native: bool
) -> None:
    monkeypatch.setattr("twopc.sinks.kafka.producer.librdkafka.library", librdkafka.library if native else lambda: None)
    sink = sink_of(kafka)
    [known] = prepare(sink)._ready
    _warn_of_statistics.cache_clear()  # the warning is logged only once
    monkeypatch.setattr(identity, "_ACQUIRED", re.compile("other words"))
    asked = make_ready(sink.producer_config(), known.transactional_id, 0, (sink.ledger,), timeout_ms=30_000)
    producer_id, epoch = known.identity
    assert asked.identity == (producer_id, epoch + 2)  # each method initialised the id once
    assert "the sink collects statistics" in caplog.text


@BOTH
def test_the_client_logs_what_its_user_asks_for(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, native: bool
) -> None:
    """The client's debug line with the id is read, and not passed on."""
    monkeypatch.setattr("twopc.sinks.kafka.producer.librdkafka.library", librdkafka.library if native else lambda: None)
    caplog.set_level("DEBUG", "twopc.librdkafka")
    sink = sink_of(kafka)
    for options, is_seen in (({}, False), ({"debug": "eos"}, True)):
        caplog.clear()
        make_ready({**sink.producer_config(), **options}, f"{sink.name}.1.w.0", 0, (sink.ledger,), timeout_ms=30_000)
        assert ("Acquired PID" in caplog.text) == is_seen
        assert is_seen or {record.levelname for record in caplog.records} <= {"INFO", "WARNING"}
