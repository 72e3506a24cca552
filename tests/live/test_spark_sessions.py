"""A process that runs many queries, one after another: ended queries leave nothing behind in the process or its workers.

PySpark itself leaves a thread and a socket for each query that has called Python. Everything else must be exactly what
was there before.
"""

from __future__ import annotations

import gc
import itertools
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from tests.live.leftovers import SOCKET_OF_SPARK, THREAD_OF_SPARK, clients, held, workers_of
from tests.live.pipeline import create_topic
from tests.live.spark_support import spark, wait_until
from tests.reader import committed
from twopc.integration.alerts import Alerts, ConsecutiveFailures
from twopc.integration.spark import exactly_once, query_runs
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

    #: Runs a query with settings of ``exactly_once``.
    Variant = Callable[..., None]

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

BATCHES = 2
#: The largest number of sinks in one query.
MOST_SINKS = 2
#: An environment variable that is set only in this test's workers.
MINE = "TWOPC_SESSIONS"


@dataclass
class Session:
    """Runs queries over the same files, each with its own sink and checkpoint.

    Attributes:
        written: the rows that must be visible.
        queries: Java's weak references to Spark's objects for the queries.
    """

    spark: SparkSession
    kafka: KafkaService
    directory: Path
    topic: str = ""
    written: Counter[str] = field(default_factory=Counter)
    queries: list[Any] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.topic = create_topic(self.kafka.bootstrap_servers, f"many-{uuid.uuid4().hex[:10]}", 2)
        self._source.mkdir()
        for batch in range(BATCHES):
            (self._source / f"{batch}.json").write_text('{"value": "row"}\n')

    @property
    def _source(self) -> Path:
        return self.directory / "source"

    @property
    def port(self) -> int:
        """The broker's port."""
        return int(self.kafka.bootstrap_servers.rpartition(":")[2])

    def sinks(self, count: int = 1, **options: Any) -> list[KafkaSink]:
        options |= {"bootstrap_servers": self.kafka.bootstrap_servers, "topic": self.topic}
        return [KafkaSink(name=f"s{uuid.uuid4().hex[:10]}", **options) for _ in range(count)]

    def location(self) -> str:
        """The location of a new checkpoint."""
        return str(self.directory / f"checkpoint-{next(self._numbers)}")

    def run(self, location: str, function: Callable[[DataFrame, int], None]) -> None:
        frame = self.spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).json(str(self._source))
        writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", location)
        query = writer.trigger(availableNow=True).start()
        jvm: Any = self.spark._jvm
        self.queries.append(jvm.java.lang.ref.WeakReference(query._jsq.streamingQuery()))
        query.awaitTermination()

    def write(self, *sinks: KafkaSink, **settings: Any) -> ExactlyOnce:
        """Run a query to its end. Return the objects that must still be closed."""
        each = exactly_once(*sinks, checkpoint_location=(location := self.location()), **settings)
        self.run(location, each)
        self.written["row"] += BATCHES * len(sinks)
        return each


def closed(session: Session, **settings: Any) -> None:
    session.write(*session.sinks(), **settings).close()


def not_closed(session: Session, **settings: Any) -> None:
    session.write(*session.sinks(), **settings)


def two_sinks(session: Session, **settings: Any) -> None:
    session.write(*session.sinks(2), **settings).close()


def without_transactions(session: Session, **settings: Any) -> None:
    session.write(*session.sinks(guarantee="AT_LEAST_ONCE"), **settings).close()


def watched(session: Session, **settings: Any) -> None:
    alerts = Alerts([ConsecutiveFailures("broken", 3)])
    session.write(*session.sinks(), listeners=[alerts], **settings).close()


def stopped_by_an_error(session: Session, **settings: Any) -> None:
    each = exactly_once(*session.sinks(), checkpoint_location=(location := session.location()), **settings)

    def function(batch: DataFrame, batch_id: int) -> None:
        each(batch.selectExpr("value", "99 AS partition") if batch_id else batch, batch_id)

    with pytest.raises(StreamingQueryException, match="99"):
        session.run(location, function)
    session.written["row"] += 1


def made_for_each_batch(session: Session, **settings: Any) -> None:
    [sink], location = session.sinks(), session.location()

    def function(batch: DataFrame, batch_id: int) -> None:
        exactly_once(sink, checkpoint_location=location, **settings)(batch, batch_id)

    session.run(location, function)
    session.written["row"] += BATCHES


#: For each kind of leftover, a query that leaves it behind unless the toolkit removes it.
SHORT = (not_closed, stopped_by_an_error, made_for_each_batch, two_sinks, watched)
VARIANTS = (closed, without_transactions, *SHORT)


def require_nothing_left(session: Session, before: Counter[str], queries: int) -> None:
    """Check that nothing is left except what was there before, and what PySpark keeps for each query."""
    allowed = before + Counter({THREAD_OF_SPARK: queries + 1, SOCKET_OF_SPARK: queries + 1})

    def left() -> Counter[str]:
        return held(session.port) - allowed

    try:
        wait_until(lambda: not left(), "nothing is left", timeout_s=20)
    except AssertionError:
        assert not left()
        raise
    assert query_runs._runs == {}
    workers = workers_of(
        psutil.Process(), variable=MINE
    )  # if the driver writes, there are none: Spark ends idle workers after a minute
    wait_until(
        lambda: max(map(clients, workers), default=0) <= MOST_SINKS, "workers keep producers of one query", timeout_s=20
    )


@pytest.fixture
def session(spark: SparkSession, kafka: KafkaService, tmp_path: Path) -> Iterator[Session]:
    session = Session(spark, kafka, tmp_path)
    environment = spark.sparkContext.environment
    environment[MINE] = uuid.uuid4().hex
    try:
        yield session
    finally:
        del environment[MINE]
    assert committed(kafka.bootstrap_servers, session.topic) == session.written


def run_and_require_nothing_left(session: Session, variants: Iterable[Variant], **settings: Any) -> None:
    closed(session, **settings)  # creates what the process keeps for all of its queries
    before = held(session.port)
    queries = 1
    for variant in variants:
        variant(session, **settings)
        queries += 1
    closed(session, **settings)  # starting a query releases what objects without close() have left behind
    require_nothing_left(session, before, queries)


@pytest.mark.whole
def test_no_resources_are_left_of_queries_that_have_ended(session: Session) -> None:
    """The driver writes all but each query's first batch, whose size it does not know."""
    run_and_require_nothing_left(session, SHORT)


@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("direct", ["tasks", "driver"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_resources_are_left_of_a_dozen_queries_of_the_same_kind(
    session: Session, variant: Variant, direct: str
) -> None:
    run_and_require_nothing_left(session, [variant] * 12, write_by=direct)


@pytest.mark.whole
@pytest.mark.timeout(3600)
def test_no_resources_are_left_of_a_hundred_queries(session: Session, add_summary: Callable[[str], None]) -> None:
    figures = [measured()]
    for _ in range(4):
        run_and_require_nothing_left(session, itertools.islice(itertools.cycle(VARIANTS), 23))
        figures.append(measured())
    add_summary("MiB, threads and files of the driver before 100 queries, and after each 25: " + ", ".join(figures))


def the_jvm_keeps(session: Session) -> int:
    """How many of the session's queries are still in the driver's JVM, after a collection in Python and one in the JVM."""
    gc.collect()
    jvm: Any = session.spark._jvm
    jvm.java.lang.System.gc()
    return sum(reference.get() is not None for reference in session.queries)


@pytest.mark.whole
@pytest.mark.parametrize("variant", [not_closed, closed, made_for_each_batch, stopped_by_an_error])
def test_the_jvm_forgets_queries_that_have_ended(session: Session, variant: Variant) -> None:
    """PySpark's function, which holds the object, and Spark's query, which holds the function, must not keep each other."""
    for _ in range(6):
        variant(session)
    closed(session)  # starting a query releases what objects without close() have left behind
    # What one process has collected lets the other process collect more.
    wait_until(lambda: the_jvm_keeps(session) <= 1, "the JVM keeps only the last query", timeout_s=30)


def measured() -> str:
    me = psutil.Process()
    return f"{me.memory_info().rss >> 20} {me.num_threads()} {me.num_fds()}"
