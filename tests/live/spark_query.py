"""A user's pipeline over the public API, as a script: ``python spark_query.py '<options as JSON>' …`` runs one or more.

It processes all input (``availableNow``) and ends. ``TWOPC_CRASH_POINTS`` arms crash points in the script and its workers. The
last line of its output is ``done`` or ``failed: <the error>``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.live.dropped_reports import after_a_drop
from twopc.checkpoint_config import CheckpointConfig
from twopc.integration.services.class_data import driver_flags
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.java import java_home
from twopc.integration.spark import ExactlyOnce, exactly_once
from twopc.sinks.kafka import KafkaSink
from twopc.testing.crash_points import DAEMON_MODULE, arm_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


RUNNING = "the query is running"
#: The text before a worker's process id.
SHUFFLED = "a shuffle was written by worker "
_PLACED = "key binary, value binary, place int, worker int"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The source, the plan and the output of the pipeline.

    ``plan``: ``rows`` (no shuffle), ``shuffle`` (by key), ``unstable`` (a replay puts rows into other tasks, as Spark knows),
    ``scattered`` (the same, but Spark does not know it),
    ``dropping`` (as ``shuffle``, and Spark drops reports after it has planned a batch and before our call),
    ``two_shuffles`` (by a random number, and again; the last two tasks between them stop themselves),
    ``cached`` (the function caches and counts a shuffle by a random number, stops itself, and writes what it has cached),
    ``again`` (a count per random number; the toolkit cannot see that the function takes each row once),
    ``update`` or ``complete`` (a count per key, in that output mode), ``transformed`` (the rows of ``update``, by
    ``transformWithStateInPandas``), ``failing`` (the first task fails once, after its last row). ``filled_by`` says who counts
    what is cached: ``function``, ``groups`` (of jobs, which the function sets), ``thread`` (of the function's), ``program``
    (before the query, which then writes that table). ``files`` is a directory of
    JSON lines with key and value, read one file per batch instead of topics.
    ``is_connect``: in a session of Spark Connect, whose server this process starts.
    ``filter`` is a condition on the rows, ``value`` an expression that makes the value where there is no
    shuffle. ``reader`` has further options of the source. ``spark`` has settings of the
    session; only those of the first pipeline count.
    """

    bootstrap_servers: str
    name: str
    sources: tuple[str, ...]
    topic: str | None
    checkpoint: str
    plan: str = "rows"
    filled_by: str = "function"
    is_connect: bool = False
    filter: str = "true"
    value: str = "value"
    partitions: int = 3
    files: str | None = None
    max_offsets: int | None = None
    reader: dict[str, str] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)


def session(
    directory: Path | str,
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    is_connect: bool = False,
) -> SparkSession:
    """A session that leaves no files outside ``directory``."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(_home_of_workers(Path(directory)))
    config = {
        "spark.jars": ",".join(map(str, _connector())),
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{driver_flags()} -Dderby.system.home={directory}",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.sql.shuffle.partitions": "3",
        **(settings or {}),
    }
    if is_connect:
        os.environ["SPARK_TESTING"] = "1"  # so that Spark Connect's server listens on any free port
    builder = SparkSession.builder.remote(master) if is_connect else SparkSession.builder.master(master)
    for name, value in config.items():
        builder = builder.config(name, value)
    # The JVM creates directories in the directory where it is started.
    before = os.getcwd()  # noqa: PTH109 - restored below
    os.chdir(directory)
    try:
        return builder.getOrCreate()
    finally:
        os.chdir(before)


def _connector() -> list[Path]:
    """Spark's Kafka connector; none for versions for which it is not published everywhere."""
    return [] if pyspark.__version__ >= "4.3" else spark_kafka_jars()


def _home_of_workers(directory: Path) -> Path:
    """A SPARK_HOME with Spark's own programs where a local cluster's workers can create their directories."""
    for part in ("bin", "jars"):
        (directory / part).symlink_to(Path(pyspark.__file__).parent / part)
    return directory


def source(spark: SparkSession, options: Options) -> DataFrame:
    if options.files is not None:
        files = spark.readStream.schema("key STRING, value STRING").option("maxFilesPerTrigger", 1)
        return files.json(options.files).where(options.filter)
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options.bootstrap_servers)
    reader = reader.option("subscribe", ",".join(options.sources)).option("startingOffsets", "earliest")
    if options.max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", options.max_offsets)
    reader = reader.options(**options.reader)
    return reader.load().where(options.filter)


def planned(frame: DataFrame, options: Options) -> DataFrame:
    if options.plan in {"shuffle", "unstable", "dropping"}:
        by = sf.rand() if options.plan == "unstable" else sf.col("key")
        return frame.select("key", "value").repartition(options.partitions, by)
    if options.plan == "scattered":
        return _scattered(frame, options).select("key", "value")
    if options.plan == "two_shuffles":
        scattered = frame.select("key", "value").mapInArrow(_at_random_places, _PLACED).repartition(4, "place")
        return scattered.mapInArrow(_stop, _PLACED).repartition(options.partitions, "place").select("key", "value")
    if options.plan in {"update", "complete", "transformed", "again"}:
        return _counted(frame, options.plan)
    if options.plan == "failing":
        return frame.select("key", "value").mapInArrow(_fail_once, "key binary, value binary")
    return frame.selectExpr("key", f"{options.value} AS value")


def _counted(frame: DataFrame, plan: str) -> DataFrame:
    if plan == "again":
        placed = frame.select("key", "value").mapInArrow(_at_random_places, _PLACED)
        return placed.groupBy("place").count().selectExpr("string(place) AS key", "string(count) AS value")
    keyed = frame.select(sf.col("key").cast("string").alias("key")).groupBy("key")
    if plan == "transformed":
        return keyed.transformWithStateInPandas(
            _counting(), outputStructType="key STRING, value STRING", outputMode="append", timeMode="None"
        )
    return keyed.count().select("key", sf.concat_ws(":", "key", "count").alias("value"))


def _counting() -> Any:
    """A processor that counts the rows of each key. Since Spark 4.0, this requires RocksDB state stores."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415 - see above

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "n LONG")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803 - Spark's names
            del timerValues
            import pandas as pd  # noqa: PLC0415 - runs in a worker

            count = sum(len(frame) for frame in rows) + (self._count.get()[0] if self._count.exists() else 0)
            self._count.update((count,))
            yield pd.DataFrame({"key": [key[0]], "value": [f"{key[0]}:{count}"]})

        def close(self) -> None:
            pass

    return Counting()


def _of_cache(each: ExactlyOnce, options: Options, table: DataFrame | None) -> Callable[[DataFrame, int], None]:
    def function(batch: DataFrame, batch_id: int) -> None:
        frame = table
        if frame is None:
            frame = _scattered(batch, options)
            _fill(frame, options.filled_by)
        each(frame.select("key", "value"), batch_id)
        frame.unpersist()

    return function


def _united(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
    return lambda batch, batch_id: each(batch.union(batch.where("false")), batch_id)


def _armed(function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Arm the process in which Spark Connect calls the function, once."""
    armed: list[bool] = []

    def arm_and_call(batch: DataFrame, batch_id: int) -> None:
        if not armed:
            arm_from_environment()
        armed.append(True)
        function(batch, batch_id)

    return arm_and_call


def _scattered(frame: DataFrame, options: Options) -> DataFrame:
    return frame.select("key", "value").mapInArrow(_at_random_places, _PLACED).repartition(options.partitions, "place")


def _fill(frame: DataFrame, filled_by: str) -> None:
    """Fill a cache, and stop this process."""
    context = frame.sparkSession.sparkContext
    if filled_by == "groups":
        context.setJobGroup("load", "fills the cache")
    if filled_by == "thread":
        filling = threading.Thread(target=frame.persist().count)
        filling.start()
        filling.join()
    else:
        frame.persist().count()
    [row] = frame.take(1)
    print(f"{SHUFFLED}{row.worker}", flush=True)  # noqa: T201 - read by the parent process
    os.kill(os.getpid(), signal.SIGSTOP)
    if filled_by == "groups":
        context.setJobGroup("write", "reads the cache")


def _table(spark: SparkSession, options: Options) -> DataFrame | None:
    """The source as a table that the program caches, if the query writes that table."""
    if options.plan != "cached" or options.filled_by != "program":
        return None
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", options.bootstrap_servers)
    frame = _scattered(reader.option("subscribe", ",".join(options.sources)).load(), options)
    _fill(frame, options.filled_by)
    return frame


def _fail_once(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    if context is not None and (context.partitionId(), context.attemptNumber()) == (0, 0):
        raise RuntimeError("the first attempt fails after its last row")


def _at_random_places(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Add two columns.

    One column has different values each time, although Spark does not know that. The other column names this worker.
    """
    for batch in batches:
        count = batch.num_rows
        places = batch.append_column("place", pa.array([random.randrange(1000) for _ in range(count)], pa.int32()))
        yield places.append_column("worker", pa.array([os.getpid()] * count, pa.int32()))


def _stop(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Stop the workers of a stage's last two tasks, after they have read everything."""
    rows = list(batches)
    context = TaskContext.get()
    if context is not None and context.partitionId() >= 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    yield from rows


def start(spark: SparkSession, options: Options) -> tuple[StreamingQuery, ExactlyOnce]:
    spark.conf.set("spark.sql.shuffle.partitions", str(options.partitions))
    sink_arguments = {"bootstrap_servers": options.bootstrap_servers, "timeout_ms": 20_000, **options.sink}
    sink = KafkaSink(name=options.name, topic=options.topic, **sink_arguments)
    settings = {"checkpoint_location": options.checkpoint, **options.settings}
    if isinstance(config := settings.get("checkpoints"), dict):  # from the command line
        settings["checkpoints"] = CheckpointConfig(**config)
    mode = {"complete": "complete", "update": "update", "again": "update"}.get(options.plan, "append")
    writer = planned(source(spark, options), options).writeStream.outputMode(mode)
    each = exactly_once(sink, **settings)
    function: Callable[[DataFrame, int], None] = each
    if options.plan == "cached":
        function = _of_cache(each, options, _table(spark, options))
    elif options.plan == "again":
        function = _united(each)
    elif options.plan == "dropping":
        function = after_a_drop(each)
    if options.is_connect:
        function = _armed(function)
    writer = writer.foreachBatch(function).option("checkpointLocation", options.checkpoint)
    return writer.trigger(availableNow=True).start(), each


def main() -> int:
    given = [Options(**json.loads(argument)) for argument in sys.argv[1:]]
    settings = dict(given[0].spark)
    master = settings.pop("spark.master", "local[2]")
    if not given[0].is_connect:
        arm_from_environment()
    here = os.getcwd()  # noqa: PTH109 - the JVM needs the path as text
    spark = session(here, master=master, settings=settings, is_connect=given[0].is_connect)
    for options in given:
        query, _ = start(spark, options)
        print(RUNNING, flush=True)  # noqa: T201 - read by the parent process
        if not is_successful(query):
            return 1
    print("done", flush=True)  # noqa: T201 - read by the parent process
    return 0


def is_successful(query: StreamingQuery) -> bool:
    """Wait for the query's end, and print its error."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        print("failed:", error, flush=True)  # noqa: T201 - read by the parent process
        return False
    return True


def encoded(options: Options) -> str:
    return json.dumps(dataclasses.asdict(options))


if __name__ == "__main__":
    sys.exit(main())
