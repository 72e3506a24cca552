"""Compare the write phase of one task without Spark, from the first Arrow batch to the vote, with Kafka's own tool.

Each side writes the same number of records of the same size, without keys, in one transaction with one producer. The sink's time
ends with the vote: every record is acknowledged, the marker is written, and the statistics are read. The facts show the time for
the driver's part, which follows.
"""

from __future__ import annotations

import statistics
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.counting import count
from benchmarks.measured import TWOPC, Case, Missing
from benchmarks.one_task import ARROW_ROWS, run_task
from benchmarks.peers import producer_performance
from benchmarks.topics import Topics
from benchmarks.turns import in_turn
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.settings import Settings

TITLE: Final = "The write phase alone: one producer, one transaction, 100-byte values"
X_LABEL: Final = ""
CASE: Final = "write phase"
_ROWS: Final = 1_000_000
_VALUE: Final = b"x" * 100
_PARTITIONS: Final = 2
_LOOP: Final = "confluent-kafka, a produce() loop"
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class _Ran:
    rate: float
    counted: int
    commit_ms: float = 0


def cases(_: Settings) -> dict[str, None]:
    """Return the one case's name."""
    return {CASE: None}


def measure(settings: Settings) -> Iterator[Case | Missing]:
    """Yield the one case, and the tools that could not be run."""
    rows = settings.rows(_ROWS)
    batch = pa.record_batch({"value": pa.array([_VALUE] * min(rows, ARROW_ROWS), pa.binary())})
    batches = [batch.slice(0, min(ARROW_ROWS, rows - start)) for start in range(0, rows, ARROW_ROWS)]
    with LocalKafka(heap="1g", jvm_flags=()) as kafka:
        topics = Topics(kafka.bootstrap_servers, _PARTITIONS)
        servers = kafka.bootstrap_servers
        runs: dict[str, Callable[[str], tuple[float, float]]] = {
            TWOPC: lambda topic: _sink(servers, topic, batches, rows),
            producer_performance.NAME: lambda topic: (producer_performance.run(servers, topic, rows, len(_VALUE)), 0),
            producer_performance.LARGE_BATCHES: lambda topic: (
                producer_performance.run(servers, topic, rows, len(_VALUE), "batch.size=1000000"),
                0,
            ),
            _LOOP: lambda topic: (_loop(servers, topic, rows), 0),
        }
        sides: dict[str, Callable[[], _Ran]] = {
            side: lambda run=run: _counted(topics, run, rows)  # type: ignore[misc] # mypy cannot infer a default's type
            for side, run in runs.items()
        }
        ran, missing = in_turn(settings.rounds, sides, warm_up=1)
    commit_ms = statistics.median(one.commit_ms for one in ran[TWOPC])
    yield Case(
        name=CASE,
        unit="records/s",
        samples={side: [one.rate for one in found] for side, found in ran.items()},
        counted={side: sum(one.counted for one in found) for side, found in ran.items()},
        facts={"ms to confirm, commit and prove": {TWOPC: commit_ms}},
    )
    yield from missing


def _counted(topics: Topics, run: Callable[[str], tuple[float, float]], rows: int) -> _Ran:
    topic = topics.create()
    rate, commit_ms = run(topic)
    found = count(topics.bootstrap_servers, topic, expected=rows, keyed=False)
    topics.delete(topic)
    return _Ran(rate, found.records, commit_ms)


def _sink(servers: str, topic: str, batches: list[pa.RecordBatch], rows: int) -> tuple[float, float]:
    sink = KafkaSink(name=f"b{uuid.uuid4().hex[:8]}", bootstrap_servers=servers, topic=topic)
    steps = run_task(sink, batches, warm=True)
    return rows / steps.write_s, 1000 * (steps.confirm_s + steps.commit_s)


def _loop(servers: str, topic: str, rows: int) -> float:
    """Do the same work with the sink's client but without the sink. The time includes the commit, as in Kafka's own tool."""
    options: dict[str, Any] = {"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex}
    producer = Producer(options)
    producer.init_transactions(_TIMEOUT_S)
    began = time.perf_counter()
    producer.begin_transaction()
    for _ in range(rows):
        while True:
            try:
                producer.produce(topic, _VALUE)
                break
            except BufferError:
                producer.poll(0.05)
    producer.commit_transaction(_TIMEOUT_S)
    return rows / (time.perf_counter() - began)
