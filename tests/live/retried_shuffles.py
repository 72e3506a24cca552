"""A query without this toolkit, as a script.

It shows which rows the query's function receives from a shuffle whose executor dies.

``python retried_shuffles.py '<options as JSON>'``. Each row goes to a random place, and Spark does not know that. Chosen tasks
stop themselves as long as the working directory has no file ``gate``. The last line is ``rows: `` and a list for
each job of the function, or ``failed: `` and the error.
"""

# ruff: noqa: T201 - read by the parent process

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from tests.live.spark_query import _at_random_places, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

ROWS = "rows: "
FAILED = "failed: "
BETWEEN = "before the last job; the shuffle was written by worker "
_SCATTERED = "key binary, value binary, place int, worker int"
_PARTITIONS = 4


@dataclass(frozen=True, kw_only=True)
class Options:
    """The steps of the query.

    ``plan``: ``one`` shuffle, ``two`` shuffles, or a ``cache`` of one, which a job has filled. ``stops``: the
    partitions whose tasks stop, in the stage after the first shuffle. ``jobs``: how many jobs read the rows; the
    program stops itself before the last one. ``split``: each job reads its part of the rows, by their random places.
    """

    directory: str
    plan: str
    stops: tuple[int, ...] = ()
    jobs: int = 1
    split: bool = False
    spark: dict[str, str] = field(default_factory=dict)


def _stopping(stops: tuple[int, ...], gate: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def stop(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        rows = list(batches)
        context = TaskContext.get()
        if context is not None and context.partitionId() in stops and not os.path.exists(gate):  # noqa: PTH110 - runs in a worker
            os.kill(os.getpid(), signal.SIGSTOP)
        yield from rows

    return stop


def _reported(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    values = (value for batch in batches for value in batch.column("value").to_pylist())
    rows = [value.decode() for value in values if value is not None]
    yield pa.RecordBatch.from_pydict({"rows": [json.dumps(rows)]})


def _rows(frame: DataFrame) -> list[str]:
    """What the tasks of one job report, as the tasks of a batch report to the toolkit."""
    return [value for row in frame.mapInArrow(_reported, "rows string").collect() for value in json.loads(row.rows)]


def main() -> int:
    options = Options(**json.loads(sys.argv[1]))
    here = Path.cwd()
    settings = dict(options.spark)
    spark = session(here, master=settings.pop("spark.master"), settings=settings)
    stop = _stopping(tuple(options.stops), str(here / "gate"))
    read: Any = spark.readStream.schema("key STRING, value STRING").option("maxFilesPerTrigger", 100)
    frame = read.json(options.directory).selectExpr("CAST(key AS BINARY) AS key", "CAST(value AS BINARY) AS value")
    scattered = frame.mapInArrow(_at_random_places, _SCATTERED).repartition(_PARTITIONS, "place")
    if options.plan != "cache":
        scattered = scattered.mapInArrow(stop, _SCATTERED)
    if options.plan == "two":
        scattered = scattered.repartition(_PARTITIONS, "place")
    found: list[list[str]] = []

    def function(batch: DataFrame, batch_id: int) -> None:
        del batch_id
        if options.plan == "cache":
            batch = batch.persist()
            batch.count()
        for job in range(options.jobs):
            if job or options.plan == "cache":
                [row] = batch.take(1)
                print(f"{BETWEEN}{row.worker}", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            found.append(_rows(batch.where(f"place % {options.jobs} = {job}") if options.split else batch))

    query = scattered.writeStream.foreachBatch(function).option("checkpointLocation", str(here / "checkpoint"))
    try:
        query.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:  # noqa: BLE001 - the parent process judges it
        print(FAILED, str(error).replace("\n", " "), flush=True)
        return 1
    print(ROWS, json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
