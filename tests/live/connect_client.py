"""A client of Spark Connect, as a script: ``python connect_client.py '<options as JSON>'``. It needs only ``pyspark-client``.

It processes a topic in batches of 20 records, and ends. If a file ``go`` is given, the client starts its query when
this file exists. It stops the query when the file ``<gate>.stop`` exists. If the crash point ``waits_at`` is given, the
process that runs the function waits there until the file ``gate`` exists. That process writes its id to
``<gate>.reached`` and its error to ``<gate>.error``. The last line of the client's output is ``done`` or ``failed: ``
and the error.
"""

# ruff: noqa: T201 - read by the parent process

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import tenacity
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from twopc.integration.spark import exactly_once
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUNNING = "the query is running"
READY_TO_START = "the client is ready"
STOPPED = "the client has stopped its query"
_POLL_S = 0.05


#: A busy machine may not start a function's process within the 10 s that Spark allows. In that case, nothing has run
#: yet, so a retry is safe.
start_patiently = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(12),
    retry=tenacity.retry_if_exception_message(match=".*Python worker failed to connect back"),
    reraise=True,
)


def _wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(_POLL_S)


def main() -> int:
    options = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote(options["server"]).getOrCreate()
    for name, value in options["settings"].items():
        spark.conf.set(name, value)
    sink = KafkaSink(name=options["name"], bootstrap_servers=options["bootstrap_servers"], topic=options["topic"])
    each = exactly_once(sink, checkpoint_location=options["checkpoint"], write_by="tasks")
    waits_at, gate, armed = options["waits_at"], options["gate"], list[bool]()

    def function(batch: DataFrame, batch_id: int) -> None:
        if waits_at and not armed:
            from twopc.crash_points import arm  # noqa: PLC0415 - the function runs on the server

            def wait() -> None:
                Path(f"{gate}.reached").write_text(str(os.getpid()))
                _wait_for(gate)

            arm(waits_at, wait)
        armed.append(True)
        try:
            each(batch, batch_id)
        except Exception as error:
            Path(f"{gate}.error").write_text(repr(error))
            raise

    frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", options["bootstrap_servers"])
    frame = frame.option("subscribe", options["source"]).option("startingOffsets", "earliest")
    writer = (
        frame.option("maxOffsetsPerTrigger", 20).load().selectExpr("key", "value").writeStream.foreachBatch(function)
    )
    writer = writer.option("checkpointLocation", options["checkpoint"]).trigger(availableNow=True)
    print(READY_TO_START, flush=True)
    if options["go"]:
        _wait_for(options["go"])
    try:
        query = start_patiently(writer.start)
        print(RUNNING, flush=True)
        while not query.awaitTermination(1):
            if Path(f"{gate}.stop").exists():
                query.stop()
                print(STOPPED, flush=True)
                return 0
    except PySparkException as error:
        print("failed:", error, flush=True)
        return 1
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
