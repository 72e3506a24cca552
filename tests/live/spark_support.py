"""Shared by the Spark tests: a pipeline with input and output, run in this process or in one that tests can kill."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import sys
import time
import uuid
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

from tests.live import spark_query
from tests.live.pipeline import create_topic
from tests.live.spark_query import RUNNING, Options, encoded, session
from tests.reader import committed, records
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.ports import free_ports
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from twopc.integration.spark import ExactlyOnce

KILLED = 128 + signal.SIGKILL
#: For tests of the tasks: without this setting, the driver would write such small batches itself.
BY_TASKS = {"write_by": "tasks"}
_SCRIPT = Path(__file__).with_name("spark_query.py")
_POLL_S = 0.02
_TIMEOUT_S = 120.0


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """This process's session, shared by all tests that kill no driver. A task may fail three times."""
    spark = session(tmp_path_factory.mktemp("spark"), master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")  # tests make tasks fail; the errors reach the driver anyway
    yield spark
    spark.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # PySpark does not close the sockets of collect()


def spark_ui() -> tuple[dict[str, str], dict[str, Any]]:
    """The settings for a server with a UI on a free port, and for a query that checks its stages in that UI."""
    [port] = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    return {"spark.ui.enabled": "true", "spark.ui.port": str(port)}, {"checkpoints": {"spark_ui": address}}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = _TIMEOUT_S) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timeout after {timeout_s:.0f} s: {what}"
        time.sleep(_POLL_S)


def finish(query: StreamingQuery, each: ExactlyOnce) -> None:
    """Let a query process all its input, and close its sinks. Raise the error that stops the query."""
    try:
        query.awaitTermination()
    finally:
        query.stop()
        each.close()


def processes_of(*sessions: int) -> list[psutil.Process]:
    """All processes of these sessions."""

    def is_theirs(process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) in sessions
        except ProcessLookupError:
            return False

    return [process for process in psutil.process_iter() if is_theirs(process)]


class Run:
    """The pipeline as a separate process: driver, JVM and workers."""

    def __init__(self, options: list[Options], root: Path, spark_faults: str, script: Path) -> None:
        self.root = root / f"run-{uuid.uuid4().hex[:8]}"
        self.root.mkdir(parents=True)
        self.log = self.root / "log"
        paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = ["env", f"TWOPC_CRASH_POINTS={spark_faults}", f"PYTHONPATH={paths}"]
        command = [*environment, sys.executable, str(script), *map(encoded, options)]
        self._process = GuardedProcess(command, log=self.log, cwd=self.root)
        self._group = os.getpgid(self._process.pid)

    @property
    def session(self) -> int:
        """The session of all its processes, including orphans and processes with their own group."""
        return self._group  # the guard has led both the group and the session since it started

    @property
    def driver(self) -> int:
        """The driver's process id."""
        return self._process.pid

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = _TIMEOUT_S) -> int | None:
        """The driver's exit code; None while it runs."""
        return self._process.wait(timeout_s)

    def ended(self, timeout_s: float = _TIMEOUT_S) -> int:
        code = self.wait(timeout_s)
        assert code is not None, f"the process did not end; its log:\n{self.text[-3000:]}"
        return code

    def wait_running(self) -> None:
        wait_until(lambda: RUNNING in self.text or self._process.exit_code is not None, "the query runs")

    def wait_stopped(self, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until the driver has stopped itself at a crash point."""
        assert self.stops(timeout_s), f"it ended; its log:\n{self.text[-3000:]}"

    def stops(self, timeout_s: float = _TIMEOUT_S) -> bool:
        """Wait until the driver stops itself at a crash point (True) or ends (False)."""
        process = psutil.Process(self._process.pid)

        def is_stopped() -> bool:
            try:
                return process.status() == psutil.STATUS_STOPPED
            except psutil.NoSuchProcess:
                return False

        is_over = f"{self.log}: stopped or ended"
        wait_until(lambda: is_stopped() or self._process.exit_code is not None, is_over, timeout_s)
        return self._process.exit_code is None

    def resume(self) -> None:
        self._process.signal(signal.SIGCONT)

    def kill_driver(self) -> None:
        """Kill only the driver. Its JVM and workers notice this by themselves, and may keep working for a while."""
        self._process.kill()

    def kill_all(self) -> None:
        """Kill everything together, as a power failure does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._group, signal.SIGKILL)
        self._process.wait(10)


class Pipeline:
    """One query over any number of runs: its input, and its output as readers see it."""

    #: The program that the process runs.
    script = _SCRIPT

    def __init__(self, bootstrap_servers: str, root: Path, *, partitions: int = 4, **options: Any) -> None:
        name = f"s{uuid.uuid4().hex[:10]}"
        self.bootstrap_servers = bootstrap_servers
        self.root = root
        given = {
            "name": name,
            "bootstrap_servers": bootstrap_servers,
            "sources": (create_topic(bootstrap_servers, f"{name}-in", partitions),),
            "topic": f"{name}-out",
            "checkpoint": str(root / "checkpoint"),
        }
        self.options = Options(**(given | options))
        if self.options.topic == f"{name}-out":
            create_topic(bootstrap_servers, f"{name}-out", 4)
        self.given: Counter[str] = Counter()
        quiet = {"bootstrap.servers": bootstrap_servers, "log_level": 0}  # the producer may outlive its broker
        # Idempotent, because a repeated request must not put a record into the input twice.
        self._producer = Producer({**quiet, "enable.idempotence": True, "partitioner": "murmur2_random"})
        self._fed = 0
        self.runs: list[Run] = []

    def feed(self, count: int, *, keys: int = 10, topic: str | None = None) -> list[str]:
        """Add records to the source; returns their values, ``<key>-<number>``."""
        values = []
        for _ in range(count):
            self._fed += 1
            key = f"k{self._fed % keys}"
            values.append(f"{key}-{self._fed:07d}")
            self.give(values[-1].encode(), key=key.encode(), topic=topic)
        self.given.update(values)
        return values

    def give(self, value: bytes | None, *, key: bytes | None = None, topic: str | None = None) -> None:
        """Add one record unchanged."""
        self._producer.produce(topic or self.options.sources[0], value, key)

    def change(self, **options: Any) -> None:
        self.options = dataclasses.replace(self.options, **options)

    def flush(self) -> None:
        """Make the input durable."""
        self._producer.flush()

    def start(self, spark: SparkSession, **options: Any) -> tuple[StreamingQuery, ExactlyOnce]:
        self.flush()
        return spark_query.start(spark, dataclasses.replace(self.options, **options))

    def run(self, spark: SparkSession, **options: Any) -> None:
        """Process all input in this process. Raises the error that stops the query."""
        query, each = self.start(spark, **options)
        finish(query, each)

    def fail(self, spark: SparkSession, **options: Any) -> str:
        """The message of the error that stops the query, without the traces around it."""
        with pytest.raises(StreamingQueryException) as raised:
            self.run(spark, **options)
        return message_of(raised.value)

    def fail_at(self, spark: SparkSession, point: str, **options: Any) -> None:
        """Stop the query at a crash point. The driver ends no transaction, so the state is the one after a kill."""
        crash_points.arm_from(f"{point}=die")
        try:
            assert "InjectedFault" in self.fail(spark, **options)
        finally:
            crash_points.disarm()

    def process(self, spark_faults: str = "", *, after: Pipeline | None = None, **options: Any) -> Run:
        """Start it as a process, which runs ``after`` first."""
        self.flush()
        mine = dataclasses.replace(self.options, **options)
        run = Run([mine] if after is None else [after.options, mine], self.root, spark_faults, self.script)
        self.runs.append(run)
        return run

    def run_over_kills_at(self, points: Sequence[str]) -> None:
        """For each point, process some input in a process whose driver is killed there.

        Then process the rest in a process that ends normally.
        """
        try:
            for point in points:
                self.feed(20)
                run = self.process(f"{point}=kill")
                assert run.ended() == KILLED, f"{point}: {run.text[-3000:]}"
            self.feed(20)
            last = self.process()
            assert last.ended() == 0, last.text[-3000:]
        finally:
            self.close()

    def visible(self) -> Counter[str]:
        assert self.options.topic is not None
        return committed(self.bootstrap_servers, self.options.topic)

    def require_exactly_once(self) -> None:
        seen = self.visible()
        lost, extra = self.given - seen, seen - self.given
        assert not lost and not extra, (
            f"{len(lost)} rows were lost: {sorted(lost)[:5]}; {len(extra)} rows are extra: {sorted(extra)[:5]}"
        )

    def require_order(self) -> None:
        """Check that the records of each key are in input order."""
        assert self.options.topic is not None
        by_key: dict[bytes, list[bytes]] = defaultdict(list)
        for message in records(self.bootstrap_servers, self.options.topic):
            by_key[message.key() or b""].append(message.value() or b"")
        for values in by_key.values():
            assert values == sorted(values)

    def close(self) -> None:
        for run in self.runs:
            run.kill_all()


def as_arrow(frame: DataFrame) -> pa.Table:
    """Do the same as ``toArrow``, which Spark 3.5 does not offer. Without rows, the result has no columns."""
    batches = frame._collect_as_arrow()  # type: ignore[operator]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def message_of(error: StreamingQueryException) -> str:
    """The line of our own error: Spark wraps it in Java's and Python's traces."""
    lines = [line.strip() for line in str(error).splitlines()]
    ours = [line for line in lines if line.startswith(("twopc.", "py4j.Py4JException: An exception was raised"))]
    return "\n".join(ours) or str(error)
