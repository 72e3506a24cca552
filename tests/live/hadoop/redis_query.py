"""A query with a Redis sink alone, so that its decisions are in its checkpoint: ``python redis_query.py '<JSON>'``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.live.spark_query import session
from twopc.integration.spark import exactly_once
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing.crash_points import arm_from_environment


def main() -> None:
    arm_from_environment()
    given = json.loads(sys.argv[1])
    spark = session(Path.cwd(), settings=given["spark"])
    sink = RedisSink(name=given["name"], url=given["url"], mapping=IncrBy(f"{given['name']}:{{id}}", by="n"))
    rows = spark.readStream.schema("id STRING, n BIGINT").option("maxFilesPerTrigger", 1).json(given["source"])
    writer = rows.writeStream.option("checkpointLocation", given["checkpoint"])
    each = exactly_once(sink)
    writer.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()
    os._exit(0)  # skips Spark's shutdown, which takes seconds


if __name__ == "__main__":
    main()
