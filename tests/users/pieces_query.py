"""The streaming side of a program: what is read, how it is planned, how ``exactly_once`` is set, which queries are started."""

from __future__ import annotations

from typing import Final

from tests.users.piece import Loose, Piece

#: ``mode`` is Spark's output mode; a stateful plan must be consumed whole.
STREAMS: Final = (
    Piece("rows", "source()", weight=10),
    Piece("where", 'source().where("n > 0")'),
    Piece("select *", 'source().select("*")'),
    Piece("repartition", 'source().repartition(3, "tenant")'),
    Piece("join with a static table", 'source().join(static, "tenant")', adds=("label",)),
    Piece("rand", 'source().withColumn("r", F.rand())', adds=("r",), loose=Loose.IDS),
)

STATEFUL: Final = (
    Piece("dropDuplicates", 'source().dropDuplicates(["id"])', weight=3),
    Piece(
        "dropDuplicatesWithinWatermark", 'source().withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])'
    ),
    Piece(
        "update",
        'source().groupBy("tenant").agg(F.sum("n").alias("n"), F.max("id").alias("id"))',
        copies=8,
        drops=True,
    ),
    Piece(
        "complete",
        'source().groupBy("tenant").agg(F.sum("n").alias("n"), F.max("id").alias("id"))',
        copies=8,
        drops=True,
    ),
    Piece(
        "windows",
        'source().withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"), "tenant")\\\n'
        '    .agg(F.sum("n").alias("n"), F.min("id").alias("id")).drop("window")',
        drops=True,
        weight=2,
    ),
    Piece(
        "session windows",
        'source().withWatermark("at", "1 minute").groupBy(F.session_window("at", "5 seconds"), "tenant")\\\n'
        '    .agg(F.sum("n").alias("n"), F.min("id").alias("id")).drop("session_window")',
        drops=True,
    ),
    Piece(
        "dropDuplicates, then windows",
        'source().withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["id"])\\\n'
        '    .groupBy(F.window("at", "1 minute"), "tenant").agg(F.sum("n").alias("n"), F.min("id").alias("id")).drop("window")',
        drops=True,
        weight=2,
    ),
    Piece(
        "two windows",
        'source().withWatermark("at", "1 minute").groupBy(F.window("at", "10 seconds").alias("w"), "tenant")\\\n'
        '    .agg(F.sum("n").alias("n"), F.min("id").alias("id"))\\\n'
        '    .groupBy(F.window("w", "1 minute"), "tenant").agg(F.sum("n").alias("n"), F.min("id").alias("id")).drop("window")',
        drops=True,
    ),
)

SETTINGS: Final = (
    Piece("defaults", "", weight=8),
    Piece("by tasks", ', write_by="tasks"', weight=5),
    Piece("by the driver", ', write_by="driver"', weight=2),
    Piece("over the budget", ", write_by=DriverUpTo(1024)"),
    Piece("staging", ", staging=True", weight=2),
    Piece("one attempt", ", checkpoints=CheckpointConfig(max_attempts=1)"),
    Piece("tolerant", ", checkpoints=CheckpointConfig(tolerable_failures=2)"),
    Piece("without history", ", checkpoints=CheckpointConfig(history=False)"),
)

#: Replaces the last columns.
SELECT: Final = Piece(
    "select",
    ', select={{one.name: ["id AS key", "to_json(struct(*)) AS value"]{other}}}',
)
SELECT_OTHER: Final = ', two.name: ["id AS key", "to_json(struct(id, *)) AS value"]'

POINTS: Final = (
    "driver.inspected",
    "driver.fenced",
    "driver.acquired",
    "driver.recovered",
    "task.began",
    "task.written",
    "task.prepared",
    "driver.prepared",
    "driver.confirmed",
    "driver.deciding",
    "driver.decided",
    "driver.committing",
    "driver.committed",
    "driver.swept",
)
