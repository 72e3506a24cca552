"""Calls under Spark Connect, as a script: ``python connect_calls.py <scenario> '<options as JSON>'``.

The options are those of ``spark_query.py``. The last line is ``outcome: `` and what happened.
"""

# ruff: noqa: T201 - read by the parent process

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.live.connect_client import start_patiently
from tests.live.spark_query import Options, planned, session, source
from twopc.checkpoint_config import CheckpointConfig
from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from twopc.integration.spark import ExactlyOnce

OUTCOME = "outcome: "


def _object(options: Options) -> ExactlyOnce:
    sink = KafkaSink(name=options.name, bootstrap_servers=options.bootstrap_servers, topic=options.topic)
    settings = dict(options.settings)
    if isinstance(config := settings.get("checkpoints"), dict):
        settings["checkpoints"] = CheckpointConfig(**config)
    return exactly_once(sink, checkpoint_location=options.checkpoint, **settings)


def _start(spark: SparkSession, options: Options, function: Any, location: str, rows: DataFrame | None = None) -> Any:
    frame = planned(source(spark, options), options) if rows is None else rows
    writer = frame.writeStream.foreachBatch(function)
    return start_patiently(writer.option("checkpointLocation", location).start)


def _ignore(batch: DataFrame, batch_id: int) -> None:
    del batch, batch_id


def _error(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the parent process judges it
        return str(error)
    return "no error"


def in_a_thread(spark: SparkSession, options: Options) -> str:
    """The function leaves the call to a thread."""
    each = _object(options)

    def function(batch: DataFrame, batch_id: int) -> None:
        errors: list[BaseException] = []

        def call() -> None:
            try:
                each(batch, batch_id)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    return _error(_start(spark, options, function, options.checkpoint).processAllAvailable)


def in_the_client(spark: SparkSession, options: Options) -> str:
    """The client calls, while the query runs."""
    query = _start(spark, options, _ignore, options.checkpoint)
    query.processAllAvailable()
    each = _object(options)
    return _error(lambda: each(spark.sql("SELECT 'a' AS key, 'b' AS value"), 0))


def with_anothers_checkpoint(spark: SparkSession, options: Options) -> str:
    """Two queries of the same session. The second one is given the checkpoint of the first one."""
    first = _start(spark, options, _ignore, options.checkpoint)
    first.processAllAvailable()
    second = _start(spark, options, _object(options), f"{options.checkpoint}-of-another")
    return _error(second.processAllAvailable)


def _shared(spark: SparkSession, options: Options) -> DataFrame:
    """A DataFrame whose queries share its columns: Spark Connect remembers each plan that it has analyzed."""
    shared = planned(source(spark, options), options)
    shared.printSchema()
    return shared


def with_anothers_checkpoint_and_columns(spark: SparkSession, options: Options) -> str:
    """The same, but the queries read one DataFrame."""
    shared = _shared(spark, options)
    _start(spark, options, _ignore, options.checkpoint, shared).processAllAvailable()
    another = f"{options.checkpoint}-of-another"
    second = _start(spark, options, _object(options), another, shared.where("key IS NOT NULL"))
    return _error(second.processAllAvailable)


def two_of_one_frame(spark: SparkSession, options: Options) -> str:
    """Each query names its own checkpoint, and both read one DataFrame."""
    shared = _shared(spark, options)
    mine = _start(spark, options, _object(options), options.checkpoint, shared)
    another = _start(spark, options, _ignore, f"{options.checkpoint}-of-another", shared)
    another.processAllAvailable()
    return _error(mine.processAllAvailable)


def two_of_one_session(spark: SparkSession, options: Options) -> str:
    """Two queries of the same session. Each is given its own checkpoint."""
    first = _start(spark, options, _ignore, f"{options.checkpoint}-of-another")
    first.processAllAvailable()
    return _error(_start(spark, options, _object(options), options.checkpoint).processAllAvailable)


def a_limit_of_a_stateful_batch(spark: SparkSession, options: Options) -> str:
    """Every second batch is cut; then the state of the next one must be complete."""
    each = _object(options)

    def function(batch: DataFrame, batch_id: int) -> None:
        each(batch.limit(1) if batch_id % 2 else batch, batch_id)

    return _error(_update(spark, options, function, source(spark, options)))


def a_stateful_plan_that_is_cut(spark: SparkSession, options: Options) -> str:
    """The query's own plan joins a table with the counts. Where the table has no row, Spark does not look at the counts."""
    table = spark.createDataFrame([("0",)], "key STRING")
    return _error(_update(spark, options, _object(options), source(spark, options), table))


def _update(spark: SparkSession, options: Options, function: Any, rows: DataFrame, table: Any = None) -> Any:
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    counts = rows.selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()
    counts = counts.selectExpr("key", "CAST(count AS STRING) AS value")
    counts = counts if table is None else table.hint("merge").join(counts, "key")
    writer = counts.writeStream.outputMode("update").foreachBatch(function)
    query = writer.option("checkpointLocation", options.checkpoint).trigger(availableNow=True).start()
    return query.awaitTermination


def main() -> int:
    scenario, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    spark = session(str(Path.cwd()), settings=options.spark, is_connect=True)
    print(OUTCOME, globals()[scenario](spark, options).replace("\n", " "), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
