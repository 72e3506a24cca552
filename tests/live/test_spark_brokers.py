"""Brokers are killed under a real query: it continues or is restarted, and nothing is lost or duplicated."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.cluster_support import cluster, coordinator, leader, replicated_topic, three_brokers
from tests.live.rules.schedules import until
from tests.live.spark_support import Pipeline, spark
from twopc.sinks.kafka import KafkaSink
from twopc.testing.checkers.history import Observation, Position, Row
from twopc.testing.checkers.verdict import verdict
from twopc.testing.checkers.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.services.kafka_cluster import LocalKafkaCluster
    from twopc.integration.services.kafka import LocalKafka

__all__ = ["cluster", "spark", "three_brokers"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: Errors that may stop a query while brokers are down, and that allow a restart: three of ours, and one from Spark's
#: source.
RESTART = (
    "twopc.errors.RetriableError",
    "twopc.errors.CommitBlockedError",
    "twopc.errors.DecisionInDoubtError",
    "org.apache.kafka.common.errors.TimeoutException",
)
_RESTARTS = 5
_BATCH = 10
_STEP_TIMEOUT_S = 120
_STALL_BOUND_S = 60
#: Spark's source may keep asking a dead leader for offsets for as long as its client's default.api.timeout.ms, which is
#: a minute by default (docs/protocol.md, "When a broker dies").
_SOURCE = {"kafka.default.api.timeout.ms": "10000", "kafka.request.timeout.ms": "10000"}
#: Enough time for these ten seconds, the elections, and the batches themselves on two cores, but less than the default
#: minute.
_TWO_BATCHES_S = 45


class Operator:
    """Keeps a query running: feeds it when it has read everything, and restarts it after an error that allows it.

    Attributes:
        restarts: the errors after which it was restarted.
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self.pipeline = pipeline
        self.restarts: list[str] = []
        self._spark = spark
        self._start()

    def _start(self) -> None:
        self.query, self.each = self.pipeline.start(self._spark)

    def _look(self) -> bool:
        """Whether the query has ended without an error. Restarts it if it has failed."""
        if self.query.isActive:
            return False
        self.each.close()
        error = self.query.exception()
        if error is None:
            return True
        assert any(name in str(error) for name in RESTART), str(error)
        self.restarts.append(str(error).splitlines()[0])
        assert len(self.restarts) <= _RESTARTS, self.restarts
        self._start()
        return False

    def committed(self) -> int:
        """The last batch that Spark has committed."""
        directory = Path(self.pipeline.options.checkpoint, "commits")
        names = [path.name for path in directory.iterdir()] if directory.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def advance(self, batches: int) -> None:
        """Wait until the query has committed this many more batches."""
        wanted = self.committed() + batches

        def is_there() -> bool:
            if self._look():
                self.pipeline.feed(10 * _BATCH)
                self._start()
            return self.committed() >= wanted

        assert until(is_there, _STEP_TIMEOUT_S), f"the query is stuck at batch {self.committed()}: {self.query.status}"

    def finish(self) -> None:
        """Wait until the query has read everything."""
        assert until(self._look, _STEP_TIMEOUT_S), (
            f"the query is stuck at batch {self.committed()}: {self.query.status}"
        )

    def close(self) -> None:
        self.query.stop()
        self.each.close()


@contextlib.contextmanager
def operated(pipeline: Pipeline, spark: SparkSession) -> Iterator[Operator]:
    """Run a query under every checker. All guarantees must hold at the end."""
    servers, topic = pipeline.bootstrap_servers, pipeline.options.topic
    assert topic is not None
    with Watcher(servers, topic) as watcher:
        pipeline.feed(10 * _BATCH)
        with contextlib.closing(Operator(pipeline, spark)) as operator:
            yield operator
            operator.finish()
        given = {_number(value): _row(value) for value in map(str.encode, pipeline.given)}
        sink = KafkaSink(name=pipeline.options.name, bootstrap_servers=servers, topic=topic)
        violations = verdict(sink, servers, watcher, given, source_of=_source, stall_bound_s=_STALL_BOUND_S)
    assert not violations, (operator.restarts, violations)


def _source(observation: Observation) -> Position:
    return _number(observation.value or b"")


def _row(value: bytes) -> Row:
    return Row(value.rpartition(b"-")[0], value)


def _number(value: bytes) -> Position:
    """Values are ``<key>-<number>``, with numbers in the source's order, since all keys have one source partition."""
    return Position(0, int(value.rpartition(b"-")[2]))


@pytest.mark.whole
@pytest.mark.timeout(3600)
def test_a_broker_killed_and_restarted_loses_and_duplicates_nothing(
    fresh_kafka: LocalKafka, tmp_path: Path, spark: SparkSession, add_summary: Callable[[str], None]
) -> None:
    kills = int(os.environ.get("TWOPC_KILLS", "2"))
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    chance = random.Random(seed)
    pipeline = Pipeline(fresh_kafka.bootstrap_servers, tmp_path, max_offsets=_BATCH)
    began = time.monotonic()
    try:
        with operated(pipeline, spark) as operator:
            for _ in range(kills):
                operator.advance(chance.randint(1, 3))
                time.sleep(chance.uniform(0, 0.5))  # to strike at a random moment within a batch
                fresh_kafka.kill()
                fresh_kafka.restart()
    finally:
        add_summary(
            f"TWOPC_SEED={seed}, {kills} kills of the broker in {time.monotonic() - began:.0f} s, "
            f"{len(pipeline.given)} records"
        )


@pytest.mark.whole
@pytest.mark.timeout(3600)
def test_a_query_continues_when_any_leader_or_coordinator_of_three_brokers_is_killed(
    cluster: LocalKafkaCluster, tmp_path: Path, spark: SparkSession, add_summary: Callable[[str], None]
) -> None:
    """One role after the other; `TWOPC_BROKER_ROUNDS` sets how often."""
    name = f"three-{tmp_path.name}"
    topics = {way: replicated_topic(cluster, f"{name}-{way}", 4) for way in ("source", "output")}
    pipeline = Pipeline(
        cluster.bootstrap_servers,
        tmp_path,
        name=name,
        sources=(topics["source"],),
        topic=topics["output"],
        max_offsets=_BATCH,
        reader=_SOURCE,
    )
    sink = KafkaSink(name=name, bootstrap_servers=cluster.bootstrap_servers)
    roles: dict[str, Callable[[], int]] = {
        "driver's coordinator": lambda: coordinator(cluster, f"{name}.driver"),
        "decisions' leader": lambda: leader(cluster, sink.ledger, 0),
        "output's leader": lambda: leader(cluster, topics["output"], 0),
    }
    rounds = int(os.environ.get("TWOPC_BROKER_ROUNDS", "1"))
    with operated(pipeline, spark) as operator:
        for role, who in list(roles.items()) * rounds:
            operator.advance(1)
            cluster[who()].kill()
            began = time.monotonic()
            operator.advance(2)
            stalled_s = time.monotonic() - began
            add_summary(f"{role} killed: two batches later after {stalled_s:.1f} s")
            assert stalled_s < _TWO_BATCHES_S, role
            cluster.start()
    add_summary(f"restarted after {operator.restarts}")
