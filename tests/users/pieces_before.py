"""The things that people do with a batch before and after they write it."""

from __future__ import annotations

from typing import Final

from tests.users.piece import Piece

LOOKS: Final = (
    Piece("count", "seen.append(batch.count())", weight=3),
    Piece("isEmpty", "seen.append(batch.isEmpty())", weight=2),
    Piece("head", "seen.append(len(batch.head(1)))"),
    Piece("first", "seen.append(batch.first())"),
    Piece("take", "seen.append(len(batch.take(3)))"),
    Piece("show", "batch.show(truncate=False)"),
    Piece("explain", "batch.explain()\nbatch.printSchema()"),
    Piece("collect", "seen.extend(row.id for row in batch.collect())"),
    Piece("toPandas", "seen.append(len(batch.toPandas()))"),
    Piece("toLocalIterator", "for row in batch.toLocalIterator():\n    seen.append(row.id)"),
    Piece("toLocalIterator, not to its end", "seen.append(next(batch.toLocalIterator(), None))"),
    Piece("toLocalIterator that prefetches", "seen.append(next(batch.toLocalIterator(prefetchPartitions=True), None))"),
    Piece("foreachPartition", "batch.foreachPartition(lambda rows: next(rows, None))"),
    Piece("aggregate", 'seen.append(batch.agg(F.max("n")).first()[0])'),
    Piece("describe", 'batch.describe("n").collect()'),
    Piece("rdd", "seen.append(batch.rdd.getNumPartitions())"),
    Piece("foreach", "batch.foreach(lambda row: None)"),
    Piece(
        "count in a thread",
        "counting = threading.Thread(target=batch.count)\ncounting.start()\ncounting.join()",
    ),
    Piece("count in a pool", "with ThreadPoolExecutor(2) as pool:\n    seen.append(pool.submit(batch.count).result())"),
    # A separate directory for each query's thread: in Spark itself, two queries that write into one directory
    # interfere.
    Piece(
        "parquet beside",
        'batch.write.mode("overwrite").parquet(f"{PLACE}/{threading.get_ident()}/copy-{batch_id}")',
        weight=2,
    ),
    Piece("json appended", 'batch.coalesce(1).write.mode("append").json(f"{PLACE}/{threading.get_ident()}/all")'),
    Piece("noop beside", 'batch.write.format("noop").mode("overwrite").save()'),
)

CACHES: Final = (
    Piece("persist", "batch.persist()", after="batch.unpersist()", weight=4),
    Piece("persist, never unpersisted", "batch.persist()"),
    Piece("cache", "batch = batch.cache()", after="batch.unpersist(blocking=True)", weight=2),
    Piece("persist on disk", "batch.persist(StorageLevel.DISK_ONLY)", after="batch.unpersist()"),
    Piece("persist and count", "batch.persist()\nbatch.count()", after="batch.unpersist()", weight=4),
    Piece("persist, count, unpersist before", "batch.persist()\nseen.append(batch.count())\nbatch.unpersist()"),
    Piece("clearCache before", "batch.cache().count()\nbatch.sparkSession.catalog.clearCache()"),
    Piece("cached under another plan", 'batch.select("*").cache().count()', weight=2),
    Piece(
        "cached as a table", 'batch.createOrReplaceTempView("cached")\nbatch.sparkSession.catalog.cacheTable("cached")'
    ),
    Piece("clearCache after", "batch.cache().count()", after="batch.sparkSession.catalog.clearCache()"),
)

_CLEARED = 'sc.setLocalProperty("spark.jobGroup.id", None)'
PROPERTIES: Final = (
    Piece(
        "job group before the count",
        'sc.setJobGroup("load", "load the batch")\nbatch.persist()\nseen.append(batch.count())',
        after="batch.unpersist()",
        weight=2,
    ),
    Piece("job group of each batch", 'sc.setJobGroup(f"batch-{batch_id}", "write")', weight=2),
    Piece("job group for all batches", 'sc.setJobGroup("write", "write the batch", interruptOnCancel=True)', weight=2),
    Piece(
        "job groups for both",
        'sc.setJobGroup("load", "load")\nbatch = batch.cache()\nbatch.count()\nsc.setJobGroup("write", "write")',
        after="batch.unpersist()",
        weight=2,
    ),
    Piece("job group cleared", f'sc.setJobGroup("load", "load")\nbatch.count()\n{_CLEARED}'),
    Piece("job group cleared at the end", 'sc.setJobGroup("write", "write")', after=_CLEARED),
    Piece("job tag", 'sc.addJobTag("nightly")\nbatch.count()', after='sc.removeJobTag("nightly")'),
    Piece("job tags cleared", 'sc.addJobTag("nightly")\nbatch.count()\nsc.clearJobTags()'),
    Piece("session tag", 'spark.addTag("nightly")', after='spark.removeTag("nightly")'),
    Piece("scheduler pool", 'sc.setLocalProperty("spark.scheduler.pool", "nightly")'),
    Piece("job description", 'sc.setJobDescription(f"batch {batch_id}")'),
    Piece("own local property", 'sc.setLocalProperty("tenant", "a")', after='sc.setLocalProperty("tenant", None)'),
)

SETTINGS: Final = tuple(
    Piece(f"{where}: {name}={value}", f'{where}.conf.set("{name}", "{value}")')
    for name, value in (
        ("spark.sql.shuffle.partitions", "5"),
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.session.timeZone", "GMT+8"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.adaptive.enabled", "true"),
        ("spark.sql.adaptive.enabled", "false"),
        ("spark.sql.execution.arrow.pyspark.enabled", "true"),
        ("spark.sql.execution.arrow.maxRecordsPerBatch", "2"),
        ("spark.sql.codegen.wholeStage", "false"),
        ("spark.sql.autoBroadcastJoinThreshold", "-1"),
    )
    for where in ("batch.sparkSession", "spark")
)

SKIPS: Final = (
    Piece("returns when empty: isEmpty", "if batch.isEmpty():\n    return", mistake=True, weight=2),
    Piece("returns when empty: count", "if batch.count() == 0:\n    return", mistake=True),
    Piece("returns when empty: head", "if not batch.head(1):\n    return", mistake=True),
    Piece("skips the first batch", "if batch_id == 0:\n    return", mistake=True),
)
