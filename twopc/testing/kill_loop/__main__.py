"""Run the query under test once, in a separate process: ``python -m twopc.testing.kill_loop RUN`` (JSON).

The run processes all available input (``availableNow``) and ends.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from twopc.testing import crash_points
from twopc.testing.kill_loop.records import SCHEMA, Reader
from twopc.testing.kill_loop.run import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def _function(target: str) -> Any:
    if target.endswith(".pickle"):
        return pickle.loads(Path(target).read_bytes())  # noqa: S301 - our own process wrote it
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _session(run: Run) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - its gateway must not start before the environment is right

    session: SparkSession = SparkSession.builder.config(map=dict(run.spark)).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _source(session: SparkSession, reader: Reader) -> DataFrame:
    stream = session.readStream.format(reader.format).options(**reader.options)
    if reader.format == "json":
        stream = stream.schema(SCHEMA)
    return stream.load().selectExpr(*reader.columns)


def _writer(run: Run, session: SparkSession) -> DataStreamWriter:
    from twopc.testing.kill_loop import moments  # noqa: PLC0415 - imports Spark

    frame, function = _source(session, run.reader), _function(run.target)
    if run.kill is not None:
        frame = moments.gated(frame, run.kill, run.reached)
        moments.wrap_foreach_batch(run.kill, run.reached)
    made: DataStreamWriter = (
        function(frame, run.checkpoint) if run.is_query else frame.writeStream.foreachBatch(function)
    )
    return made


def main() -> None:
    """Run the query that the command line describes."""
    run = msgspec.json.decode(sys.argv[1], type=Run)
    sys.path[:] = run.path
    environment = run.environment()
    os.environ.clear()
    os.environ.update(environment)
    crash_points.arm_from_environment()
    session = _session(run)
    writer = _writer(run, session).option("checkpointLocation", run.checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
