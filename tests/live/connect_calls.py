"""Calls under Spark Connect, as a script: ``python -m tests.live.connect_calls <scenario> '<options as JSON>'``.

The options are those of ``spark_query.py``. The last line of the output is ``outcome: `` and what happened.
"""

# ruff: noqa: T201 - the parent process reads the output

from __future__ import annotations

import json
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import lit, udf

from tests.live.connect_client import start_patiently
from tests.live.spark_query import Options, planned, session, source
from twopc.checkpoint_config import CheckpointConfig
from twopc.integration.connect.frames import (
    plan_of_rows,
    references,
    require_own_rows,
    require_own_views,
    resolved,
    views_of,
)
from twopc.integration.connect.plans import plan_of_frame
from twopc.integration.spark import exactly_once
from twopc.integration.spark.several import SinkFrame
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from twopc.integration.spark import ExactlyOnce

OUTCOME = "outcome: "
_POLL_S = 0.05


def _object(options: Options) -> ExactlyOnce:
    sink = KafkaSink(name=options.name, bootstrap_servers=options.bootstrap_servers, topic=options.topic)
    settings = dict(options.settings)
    if isinstance(config := settings.get("checkpoints"), dict):
        settings["checkpoints"] = CheckpointConfig(**config)
    return exactly_once(sink, checkpoint_location=options.checkpoint, **settings)


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(_POLL_S)


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
    """The function makes the call in a separate thread."""
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
    """Two queries in the same session. The second query receives the first query's checkpoint."""
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
    """As above, but both queries read the same DataFrame."""
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
    """Two queries in the same session. Each query receives its own checkpoint."""
    first = _start(spark, options, _ignore, f"{options.checkpoint}-of-another")
    first.processAllAvailable()
    return _error(_start(spark, options, _object(options), options.checkpoint).processAllAvailable)


def a_view_that_another_query_replaces(spark: SparkSession, options: Options) -> str:
    """The other query replaces the view after this query has made its DataFrame, and before it writes the DataFrame."""

    def another_value(batch: DataFrame) -> DataFrame:
        return batch.selectExpr("key", "CAST('of another query' AS BINARY) AS value")

    return _with_a_replaced_view(spark, options, another_value)


def a_view_of_collected_rows_that_another_query_replaces(spark: SparkSession, options: Options) -> str:
    """Both queries collect their batch, and make the view of the collected rows."""

    def collected(batch: DataFrame) -> DataFrame:
        return batch.sparkSession.createDataFrame(batch.toPandas(), batch.schema)

    return _with_a_replaced_view(spark, options, collected, own=collected)


def a_view_that_a_query_of_the_same_frame_replaces(spark: SparkSession, options: Options) -> str:
    """The same, but both queries read the same DataFrame, so their batches have the same columns."""
    shared = _shared(spark, options)
    return _with_a_replaced_view(spark, options, lambda batch: batch, mine=shared, theirs=shared.where("false"))


def _with_a_replaced_view(
    spark: SparkSession,
    options: Options,
    replacement: Callable[[DataFrame], DataFrame],
    mine: DataFrame | None = None,
    theirs: DataFrame | None = None,
    own: Callable[[DataFrame], DataFrame] = lambda batch: batch,
) -> str:
    each, made, replaced = _object(options), Path("made").resolve(), Path("replaced").resolve()

    def function(batch: DataFrame, batch_id: int) -> None:
        own(batch).createOrReplaceTempView("rows")
        frame = batch.sparkSession.sql("SELECT key, value FROM rows")
        made.touch()
        _wait_for(replaced)
        each(frame, batch_id)

    def other(batch: DataFrame, batch_id: int) -> None:
        del batch_id
        _wait_for(made)
        replacement(batch).createOrReplaceTempView("rows")
        replaced.touch()

    second = _start(spark, options, other, f"{options.checkpoint}-of-another", theirs)
    first = _start(spark, options, function, options.checkpoint, mine)
    second.processAllAvailable()
    return _error(first.processAllAvailable)


def a_view_of_its_own(spark: SparkSession, options: Options) -> str:
    """The function reads the batch through a view, with SQL that also reads another view."""
    each = _object(options)
    spark.sql("SELECT 'unknown' AS none").createOrReplaceTempView("nothing")

    def function(batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("rows")
        rows = "SELECT key, value FROM rows WHERE string(value) NOT IN (SELECT none FROM nothing)"
        frame = batch.sparkSession.sql(rows)
        each(frame, batch_id)
        views = [one.name for one in batch.sparkSession.catalog.listTables() if one.isTemporary]
        if sorted(views) != ["nothing", "rows"]:
            raise AssertionError(views)

    return _error(_start(spark, options, function, options.checkpoint).processAllAvailable)


def one_view_for_two_parts(spark: SparkSession, options: Options) -> str:
    """A loop reuses the name of its view, so both parts contain the last part's rows."""
    sinks = [
        KafkaSink(name=f"{options.name}-{part}", bootstrap_servers=options.bootstrap_servers, topic=options.topic)
        for part in ("a", "b")
    ]
    config = CheckpointConfig(**options.settings["checkpoints"])
    each = exactly_once(*sinks, checkpoint_location=options.checkpoint, checkpoints=config)

    def function(batch: DataFrame, batch_id: int) -> None:
        parts = {}
        for rest, sink in enumerate(sinks):
            batch.where(f"hash(value) % 2 = {rest}").createOrReplaceTempView("part")
            parts[sink.name] = batch.sparkSession.sql("SELECT key, value FROM part")
        each(parts, batch_id)

    return _error(_start(spark, options, function, options.checkpoint).processAllAvailable)


def _of_two_sinks(spark: SparkSession, options: Options, parts: Callable[[DataFrame], list[DataFrame]]) -> str:
    """The function splits each batch between two sinks."""
    names = [f"{options.name}-{part}" for part in ("a", "b")]
    sinks = [KafkaSink(name=name, bootstrap_servers=options.bootstrap_servers, topic=options.topic) for name in names]
    config = CheckpointConfig(**options.settings["checkpoints"])
    each = exactly_once(*sinks, checkpoint_location=options.checkpoint, checkpoints=config)

    def function(batch: DataFrame, batch_id: int) -> None:
        each(dict(zip(names, parts(batch), strict=True)), batch_id)

    return _error(_start(spark, options, function, options.checkpoint).processAllAvailable)


def parts_by_a_loop_variable(spark: SparkSession, options: Options) -> str:
    """PySpark pickles both functions after the loop has ended."""

    def parts(batch: DataFrame) -> list[DataFrame]:
        found = []
        for part in range(2):
            mine = udf(lambda value: len(value) % 2 == part, "boolean")  # noqa: B023 - the mistake
            found.append(batch.where(mine("value")))
        return found

    return _of_two_sinks(spark, options, parts)


def parts_by_a_bound_variable(spark: SparkSession, options: Options) -> str:
    """The same, without the mistake. A part of its own has the time, which the function has computed once."""

    def parts(batch: DataFrame) -> list[DataFrame]:
        now = lit(datetime.now(timezone.utc))
        found = []
        for part in range(2):
            mine = udf(lambda value, part=part: value[-1] % 2 == part, "boolean")
            found.append(batch.where(mine("value")).where(now > "2020-01-01"))
        return found

    return _of_two_sinks(spark, options, parts)


def parts_by_the_clock(spark: SparkSession, options: Options) -> str:
    """Spark plans the parts one after the other."""
    limit = "current_timestamp() > date'2020-01-01'"
    return _of_two_sinks(spark, options, lambda batch: [batch.where(limit), batch.where(f"NOT {limit}")])


def names_of_views(spark: SparkSession, options: Options) -> str:
    """No query runs. A local checkpoint stands in for a batch, because the server stores both under an id."""
    del options
    batch = spark.sql("SELECT 'own' AS key, 'a' AS value").localCheckpoint()
    other = spark.sql("SELECT 'of another' AS key, 'b' AS value").localCheckpoint()
    columns = plan_of_frame(batch).rdds[0]
    batch.createOrReplaceTempView("rows")
    frame = spark.sql("SELECT key, value FROM rows")
    joined = batch.where("value NOT IN (SELECT value FROM nothing)")
    spark.sql("SELECT 'none' AS value").createOrReplaceTempView("nothing")

    known = views_of(spark)

    def sound(one: DataFrame) -> str:
        plan = plan_of_frame(one)
        named = {"sink": (plan, references(one, plan.analyzed))}

        def check() -> None:
            require_own_views(7, {"sink": plan}, known)
            require_own_rows(7, plan_of_frame(spark.range(1)), named, columns, list)

        return _error(check)

    seen = {"own": sound(frame), "joined": sound(joined)}
    with resolved([SinkFrame("sink", frame, ())]) as [held]:
        other.createOrReplaceTempView("rows")
        seen["replaced"] = sound(frame)
        seen["held"] = sound(held.frame)
        seen["rows"] = ", ".join(row.key for one in (frame, held.frame) for row in one.collect())
    seen["views"] = ", ".join(sorted(table.name for table in spark.catalog.listTables()))
    same = batch.repartition(2).localCheckpoint()
    used_twice = spark.sql("SELECT a.key FROM {rows} a JOIN {rows} b USING (key)", rows=batch)
    frames = {"batch": batch, "same": same, "joined": joined, "used twice": used_twice}
    for name, one in frames.items():
        seen[f"{name} hides rows"] = str(plan_of_rows(one, one, batch).hides_rows)
    seen["same columns"] = str(plan_of_frame(same).rdds == [columns])
    return json.dumps(seen)


def a_limit_of_a_stateful_batch(spark: SparkSession, options: Options) -> str:
    """Every second batch is cut. The next batch's state must still be complete."""
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
    return _all_of(counts, options, function, "update")


def _all_of(frame: DataFrame, options: Options, function: Any, mode: str) -> Callable[[], object]:
    writer = frame.writeStream.outputMode(mode).foreachBatch(function).trigger(availableNow=True)
    return start_patiently(writer.option("checkpointLocation", options.checkpoint).start).awaitTermination


def a_count_of_all_rows(spark: SparkSession, options: Options) -> str:
    """An aggregate without keys, whose state has one partition in each batch."""
    counts = source(spark, options).groupBy().count().selectExpr("'all' AS key", "string(count) AS value")
    return _error(_all_of(counts, options, _object(options), "update"))


def a_limit_of_the_stream(spark: SparkSession, options: Options) -> str:
    """The stream ends after its first rows, which one partition of state counts."""
    rows = source(spark, options).selectExpr("key", "value").limit(30)
    return _error(_all_of(rows, options, _object(options), "append"))


def a_sorted_batch(spark: SparkSession, options: Options) -> str:
    """Numbers from files, into a list in Redis. The server has cached the sorted rows before the tasks write them."""
    from twopc.sinks.redis import RedisSink  # noqa: PLC0415 - no other scenario needs Redis
    from twopc.sinks.redis.mappings import ListPush  # noqa: PLC0415 - see above

    sink = RedisSink(name=options.name, url=options.sink["url"], mapping=ListPush(f"{options.name}:all", "n"))
    each = exactly_once(
        sink,
        checkpoint_location=options.checkpoint,
        write_by="tasks",
        checkpoints=CheckpointConfig(deterministic_plan=True, max_writers=4),
    )

    def function(batch: DataFrame, batch_id: int) -> None:
        rows = batch.orderBy("n").persist()
        rows.count()
        each(rows, batch_id)

    return _error(_all_of(spark.readStream.schema("n BIGINT").json(str(options.files)), options, function, "append"))


def main() -> int:
    scenario, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    spark = session(str(Path.cwd()), settings=options.spark, is_connect=True)
    print(OUTCOME, globals()[scenario](spark, options).replace("\n", " "), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
