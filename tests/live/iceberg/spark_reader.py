"""Iceberg's own Spark as a process: ``python spark_reader.py <uri of a REST catalog> <directory>`` answers SQL statements.

Each line of its input is a statement as JSON, or ``STREAM`` with a table that a stream reads to its end. Each line of its output
is the rows, or the first line of an error. A session with these jars must not be the one of the other tests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.live.spark_query import session
from twopc.integration.services.jars import spark_iceberg_jars

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

CATALOG = "ice"


def _rows(spark: SparkSession, statement: str, directory: Path) -> list[Row]:
    action, _, table = statement.partition(" ")
    if action != "STREAM":
        return spark.sql(statement).collect()
    written = spark.readStream.table(table).writeStream.option("checkpointLocation", str(directory / "checkpoint"))
    query = written.trigger(availableNow=True).start(str(directory / "read"), format="parquet")
    query.awaitTermination()
    return spark.read.parquet(str(directory / "read")).collect()


def main() -> None:
    """Answer until the input ends."""
    uri, directory = sys.argv[1:]
    settings = {
        "spark.jars": ",".join(map(str, spark_iceberg_jars())),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "rest",
        f"spark.sql.catalog.{CATALOG}.uri": uri,
        f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = session(Path(directory), settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        try:
            found = _rows(spark, json.loads(line), Path(directory))
            answer: dict[str, object] = {"rows": [row.asDict(recursive=True) for row in found]}
        except Exception as error:  # noqa: BLE001 - the test judges it
            answer = {"error": str(error).splitlines()[0]}
        sys.stdout.write(f"answer: {json.dumps(answer, default=str)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
