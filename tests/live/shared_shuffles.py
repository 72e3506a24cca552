"""A user's function whose batch shares a shuffle with another thread's job, as a script.

``python shared_shuffles.py '<options as JSON>'``. Each row goes to a random place, and Spark does not know that. The tasks
that write the shuffle, and those that read it, stop themselves as long as the working directory has no file ``maps`` or
``readers``. Before a task stops, it creates a file with its name in the directory ``tasks``. ``Options.plan`` says when the
other job runs, and ``Options.filled_by`` who runs it:

============= ======================================================================
``before``    it has ended before our call; the batch has two shuffles
``earlier``   it starts before our call's job, and runs as long as our job does
``later``     the same, but it starts after our call's job
``cached``    one thread fills a cache of the batch and another counts the batch, before our call writes the cache
``cut``       the same with a local checkpoint, which hides the shuffle from our call's job
``after``     as ``later``, but it starts once the directory has a file ``go``; in a session of Spark Connect, too
``union``     there is no other job; two stages of ours read the shuffle, one after the other
``joined``    there is no other job; the function joins a table with the batch, which is broadcast
``planned``   the same, but the join is a part of the query
``collected`` there is no other job; the function collects the batch and gives its rows back to Spark
``late``      the same, and only then does the function call ``exactly_once()``
============= ======================================================================

============ ======================================================================
``thread``   a thread of the function
``groups``   a thread of the function, which sets a job group and a job tag
``query``    the function of a second query of the session
============ ======================================================================
"""

# ruff: noqa: T201 - read by the parent process

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sf

from tests.live.spark_query import Options, is_successful, session, source
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

    from twopc.integration.spark import ExactlyOnce

MAPS, READERS, GO = "maps", "readers", "go"
OURS, OTHER = "ours", "other"
BOTH: Final = "both jobs run"
ENDED: Final = "the other job has ended"
#: The number of the source's keys: ``k0``, ``k1`` and so on.
KEYS: Final = 100
_WHO: Final = "who"
_SCHEMA: Final = "key binary, value binary, place int"
_PARTITIONS: Final = 4
_POLL_S: Final = 0.05


def _stopping(stage: str, here: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Stop the worker of each task, once it has read everything, as long as the file does not exist."""

    def stop(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        rows = list(batches)
        context = TaskContext.get()
        assert context is not None
        # A client of Spark Connect cannot set local properties, but the server stores the client's tags in one.
        is_other = OTHER in f"{context.getLocalProperty(_WHO)} {context.getLocalProperty('spark.job.tags')}"
        who = OTHER if is_other else OURS
        numbers = (context.partitionId(), context.taskAttemptId(), os.getpid())
        Path(here, "tasks", "-".join((stage, who, *map(str, numbers)))).touch()
        if not Path(here, stage).exists():
            os.kill(os.getpid(), signal.SIGSTOP)
        for batch in rows:
            if stage == MAPS:
                places = [random.randrange(1000) for _ in range(batch.num_rows)]
                yield batch.append_column("place", pa.array(places, pa.int32()))
            else:
                yield batch

    return stop


def planned(frame: DataFrame, options: Options, here: Path) -> DataFrame:
    scattered = frame.select("key", "value").mapInArrow(_stopping(MAPS, str(here)), _SCHEMA)
    if options.plan in {"union", "joined", "collected", "late"}:
        return scattered.repartition(_PARTITIONS, "place")
    read = scattered.repartition(_PARTITIONS, "place").mapInArrow(_stopping(READERS, str(here)), _SCHEMA)
    if options.plan == "planned":
        return _joined(read)
    return read.repartition(_PARTITIONS, "place") if options.plan == "before" else read


def _joined(rows: DataFrame) -> DataFrame:
    """All of the rows, as the join of a table with the rows, which Spark broadcasts."""
    keys = rows.sparkSession.range(KEYS).selectExpr("CAST(concat('k', id) AS BINARY) AS key")
    return keys.join(sf.broadcast(rows), "key").select("key", "value")


def alone(make: Callable[[], ExactlyOnce], plan: str, here: str) -> Callable[[DataFrame, int], None]:
    """The function for the plans without another job."""
    early = None if plan == "late" else make()

    def write(batch: DataFrame, batch_id: int) -> None:
        stop = _stopping(READERS, here)
        if plan == "union":
            odd = batch.where("place % 2 = 1").coalesce(1).mapInArrow(stop, _SCHEMA).repartition(2, "key")
            batch = batch.where("place % 2 = 0").unionByName(odd)
        elif plan == "joined":
            batch = _joined(batch.mapInArrow(stop, _SCHEMA))
        elif plan in {"collected", "late"}:
            rows = batch.mapInArrow(stop, _SCHEMA).select("key", "value").toPandas()
            batch = batch.sparkSession.createDataFrame(rows, "key BINARY, value BINARY")
        each = early or make()
        each(batch.select("key", "value"), batch_id)

    return write


def counted_after(each: ExactlyOnce, here: str) -> Callable[[DataFrame, int], None]:
    """The function for the plan ``after``."""

    def write(batch: DataFrame, batch_id: int) -> None:
        def count() -> None:
            _await_file(Path(here, GO))
            batch.sparkSession.addTag(OTHER)
            batch.count()

        thread = threading.Thread(target=count)
        thread.start()
        each(_in_one_task(batch), batch_id)
        thread.join()

    return write


def _in_one_task(batch: DataFrame) -> DataFrame:
    """The batch's rows, from one task, which reads the parts of the shuffle one after another."""
    return batch.select("key", "value").coalesce(1)


def _await_file(path: Path) -> None:
    while not path.exists():
        time.sleep(_POLL_S)


class Shared:
    """Runs the two jobs over a batch, in the order of the plan."""

    def __init__(self, spark: SparkSession, each: ExactlyOnce, options: Options, here: Path) -> None:
        self._context = spark.sparkContext
        self._each = each
        self._options = options
        self._here = here
        self._handed_over: list[Callable[[], object]] = []
        self._is_handed_over, self._is_done = threading.Event(), threading.Event()

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """The function of the query."""
        getattr(self, f"_{self._options.plan}")(batch, batch_id)

    def run_other(self, batch: DataFrame, batch_id: int) -> None:
        """The function of the second query."""
        del batch, batch_id
        self._is_handed_over.wait()
        self._as(OTHER, self._handed_over[0])
        self._is_done.set()

    def _before(self, batch: DataFrame, batch_id: int) -> None:
        self._other(batch.count)()
        print(ENDED, flush=True)
        _await_file(self._here / GO)
        self._each(batch.select("key", "value"), batch_id)

    def _earlier(self, batch: DataFrame, batch_id: int) -> None:
        join = self._other(batch.count)
        self._await_jobs(1)
        self._each(_in_one_task(batch), batch_id)
        join()

    def _later(self, batch: DataFrame, batch_id: int) -> None:
        def count() -> None:
            self._await_jobs(1)
            batch.count()

        join = self._other(count)
        self._each(_in_one_task(batch), batch_id)
        join()

    def _cached(self, batch: DataFrame, batch_id: int) -> None:
        cached = batch.coalesce(1).persist()
        self._fill(cached.count, batch)
        self._each(cached.select("key", "value"), batch_id)
        cached.unpersist()

    def _cut(self, batch: DataFrame, batch_id: int) -> None:
        cut: list[DataFrame] = []
        self._fill(lambda: cut.append(batch.coalesce(1).localCheckpoint()), batch)
        self._each(cut[0].select("key", "value"), batch_id)

    def _fill(self, fill: Callable[[], object], batch: DataFrame) -> None:
        """Cache the batch's rows in one thread, while another thread counts the batch."""
        filling = threading.Thread(target=self._as, args=(OURS, fill))
        filling.start()
        self._await_jobs(1)
        self._other(batch.count)()
        filling.join()

    def _other(self, job: Callable[[], object]) -> Callable[[], object]:
        """Start the other job. Returns a function that waits for its end."""
        if self._options.filled_by == "query":
            self._handed_over.append(job)
            self._is_handed_over.set()
            return self._is_done.wait
        thread = threading.Thread(target=self._as, args=(OTHER, job))
        thread.start()
        return thread.join

    def _as(self, who: str, job: Callable[[], object]) -> None:
        if self._options.filled_by == "groups":
            self._context.setJobGroup("mine", "the other job")
            self._context.addJobTag("mine")
        self._context.setLocalProperty(_WHO, who)
        job()

    def _await_jobs(self, count: int) -> None:
        while len(self._context.statusTracker().getActiveJobsIds()) < count:
            time.sleep(_POLL_S)

    def report_both(self) -> None:
        self._await_jobs(2)
        print(BOTH, flush=True)


def main() -> int:
    options = Options(**json.loads(sys.argv[1]))
    here = Path.cwd()
    (here / "tasks").mkdir()
    settings = dict(options.spark)
    master = settings.pop("spark.master")
    spark = session(here, master=master, settings=settings, is_connect=options.is_connect)
    sink = KafkaSink(
        name=options.name, topic=options.topic, bootstrap_servers=options.bootstrap_servers, timeout_ms=20_000
    )

    def make() -> ExactlyOnce:
        return exactly_once(sink, checkpoint_location=options.checkpoint, **options.settings)

    if options.plan in {"union", "joined", "planned", "collected", "late"}:
        write = alone(make, options.plan, str(here))
    elif options.plan == "after":
        write = counted_after(make(), str(here))
    else:
        shared = Shared(spark, make(), options, here)
        threading.Thread(target=shared.report_both, daemon=True).start()
        write = shared.write
    writer = planned(source(spark, options), options, here).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
    if options.filled_by == "query":
        other = source(spark, options).writeStream.foreachBatch(shared.run_other)
        other.option("checkpointLocation", str(here / "other")).trigger(availableNow=True).start()
    if not is_successful(query):
        return 1
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
