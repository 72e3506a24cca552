"""The transformations that people apply to a batch's rows. All keep the columns ``id``, ``tenant`` and ``n``."""

from __future__ import annotations

from typing import Final

from tests.users.piece import Loose, Piece

PLAIN: Final = (
    Piece("where", 'out = out.where("n % 3 <> 0")'),
    Piece("select *", 'out = out.select("*")', weight=2),
    Piece("withColumn", 'out = out.withColumn("n", F.col("n") * 2)'),
    Piece("a null", 'out = out.withColumn("tenant", F.expr("nullif(tenant, \'b\')"))'),
    Piece("orderBy", 'out = out.orderBy("id")'),
    Piece("orderBy descending", 'out = out.orderBy(F.col("n").desc(), "id")'),
    Piece("sortWithinPartitions", 'out = out.sortWithinPartitions("n")'),
    Piece("repartition", "out = out.repartition(3)", weight=2),
    Piece("repartition by a column", 'out = out.repartition(4, "tenant")', weight=2),
    Piece("repartition at random", "out = out.repartition(3, F.rand())"),
    Piece("repartitionByRange", 'out = out.repartitionByRange(2, "n")'),
    Piece("coalesce", "out = out.coalesce(1)"),
    Piece("limit of an order", 'out = out.orderBy("id").limit(5)', ties=True),
    Piece("limit of all", "out = out.limit(1000)"),
    Piece("limit", "out = out.limit(5)", loose=Loose.SOME),
    Piece("union with itself", "out = out.union(out)", copies=2),
    Piece("union of parts", 'out = out.where("n % 2 = 0").unionByName(out.where("n % 2 <> 0"))'),
    Piece("join with a static table", 'out = out.join(static, "tenant", "left")', adds=("label",), weight=2),
    Piece("broadcast join", 'out = out.join(F.broadcast(static), "tenant")', adds=("label",)),
    Piece("anti join", 'out = out.join(static.where("label = \'beta\'"), "tenant", "left_anti")'),
    Piece("self join", 'out = out.join(out.selectExpr("id", "n + 1 AS m").distinct(), "id")', adds=("m",), weight=2),
    Piece("dropDuplicates", 'out = out.dropDuplicates(["id"])', ties=True, weight=2),
    Piece("distinct", "out = out.distinct()"),
    Piece(
        "window",
        'out = out.withColumn("place", F.row_number().over(Window.partitionBy("tenant").orderBy("n", "id")))',
        adds=("place",),
        ties=True,
        weight=2,
    ),
    Piece("sum over a window", 'out = out.withColumn("s", F.sum("n").over(Window.partitionBy("tenant")))', adds=("s",)),
    Piece("explode", 'out = out.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2))))', adds=("copy",), copies=2),
    Piece("rand", 'out = out.withColumn("x", F.rand())', adds=("x",), loose=Loose.IDS),
    Piece("uuid", 'out = out.withColumn("u", F.expr("uuid()"))', adds=("u",), loose=Loose.IDS),
    Piece("current_timestamp", 'out = out.withColumn("t", F.current_timestamp())', adds=("t",), loose=Loose.IDS),
    Piece(
        "monotonically_increasing_id",
        'out = out.withColumn("i", F.monotonically_increasing_id())',
        adds=("i",),
        loose=Loose.IDS,
    ),
    Piece("spark_partition_id", 'out = out.withColumn("p", F.spark_partition_id())', adds=("p",), loose=Loose.IDS),
    Piece("random where", 'out = out.where("rand() < 0.5")', loose=Loose.ANY),
    Piece("sample", "out = out.sample(0.5)", loose=Loose.ANY),
    Piece("a time as text", 'out = out.withColumn("day", F.col("at").cast("string"))', adds=("day",), weight=2),
    Piece("cached", "out = out.persist()", after="out.unpersist()", weight=2),
    Piece("cached and counted", "out = out.cache()\nseen.append(out.count())", after="out.unpersist()"),
    Piece("localCheckpoint", "out = out.localCheckpoint()"),
    Piece("createDataFrame", "out = batch.sparkSession.createDataFrame(out.collect(), out.schema)"),
    Piece("createDataFrame of the global session", "out = spark.createDataFrame(out.collect(), out.schema)"),
    Piece("toPandas and back", "out = spark.createDataFrame(out.toPandas().astype({'id': str}), out.schema)"),
    Piece("rdd and back", "out = spark.createDataFrame(out.rdd, out.schema)"),
    Piece("alias", 'out = out.alias("o").selectExpr("o.*")'),
    Piece("transform", 'out = out.transform(lambda frame: frame.where("n IS NOT NULL"))'),
    Piece(
        "view of the batch's session",
        'out.createOrReplaceTempView("rows")\nout = batch.sparkSession.sql("SELECT *, upper(tenant) AS T FROM rows")',
        adds=("T",),
        weight=2,
    ),
    Piece("view in the global session", 'out.createOrReplaceTempView("rows")\nout = spark.sql("SELECT * FROM rows")'),
    Piece(
        "global view",
        'out.createOrReplaceGlobalTempView("rows_" + RUN)\nout = spark.sql(f"SELECT * FROM global_temp.rows_{RUN}")',
    ),
    Piece("sql with a frame", 'out = spark.sql("SELECT * FROM {rows} WHERE n > 0", rows=out)'),
)

FUNCTIONS: Final = (
    Piece(
        "python function",
        'out = out.withColumn("f", marked("tenant", "n"))',
        adds=("f",),
        top='@F.udf("string")\ndef marked(tenant, n):\n    return f"{tenant}/{n}"',
    ),
    Piece(
        "pandas function",
        'out = out.withColumn("g", plus_one("n"))',
        adds=("g",),
        top='@F.pandas_udf("bigint")\ndef plus_one(n: pd.Series) -> pd.Series:\n    return n + 1',
    ),
    Piece(
        "mapInPandas",
        "out = out.mapInPandas(kept, out.schema)",
        top='def kept(frames):\n    for frame in frames:\n        yield frame[frame["n"] > 1]',
    ),
    Piece("mapInArrow", "out = out.mapInArrow(same, out.schema)", top="def same(batches):\n    yield from batches"),
    Piece(
        "applyInPandas",
        'out = out.groupBy("tenant").applyInPandas(smallest, out.schema)',
        ties=True,
        top='def smallest(frame):\n    return frame.sort_values(["n", "id"]).head(2)',
    ),
    Piece(
        "a function that is not deterministic",
        'out = out.withColumn("f", drawn())',
        adds=("f",),
        loose=Loose.IDS,
        top='@F.udf("double")\ndef drawn():\n    return random.random()',
    ),
)

GROUPED: Final = (
    Piece(
        "groupBy",
        'out = out.groupBy("tenant").agg(F.sum("n").alias("n"), F.min("id").alias("id"))',
        drops=True,
        weight=3,
    ),
    Piece(
        "groupBy, count",
        'out = out.groupBy("id", "tenant").agg(F.count("*").alias("n"))',
        drops=True,
    ),
)

#: How a row becomes a key and a value; ``{values}`` are all of its columns except the first.
FINAL: Final = (
    Piece("text", 'out = out.selectExpr("id AS key", "concat_ws(\'|\', id, {values}) AS value")', weight=4),
    Piece("json", 'out = out.select(F.col("id").alias("key"), F.to_json(F.struct("id", {names})).alias("value"))'),
    Piece(
        "columns beside", 'out = out.selectExpr("*", "id AS key", "concat_ws(\'|\', id, {values}) AS value")', weight=2
    ),
    Piece("capitals", 'out = out.selectExpr("id AS Key", "concat_ws(\'|\', id, {values}) AS VALUE")'),
    Piece(
        "binary",
        'out = out.selectExpr("CAST(id AS BINARY) AS key", "CAST(concat_ws(\'|\', id, {values}) AS BINARY) AS value")',
    ),
)
