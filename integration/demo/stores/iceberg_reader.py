"""Read an Iceberg table with Spark and Iceberg's own runtime, in a process that shares no code with the sink."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from twopc.integration.demo.stores.iceberg import catalog_settings, full_name
from twopc.integration.services.jars import spark_iceberg_jars
from twopc.testing.kill_loop.run import settings


def main() -> None:
    """Write the table's rows to a Parquet file."""
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder
    config = {**settings(Path(given["scratch"])), **catalog_settings(given["uri"])}
    for name, value in {**config, "spark.jars": ",".join(map(str, spark_iceberg_jars()))}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.table(full_name(given["table"])).write.parquet(f"file://{given['into']}")
    spark.stop()


if __name__ == "__main__":
    main()
