"""Run the query under test once, in a separate process: ``python -m twopc.testing.kill_loop RUN``, where RUN is JSON.

The run processes all available input (``availableNow``), then ends.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tenacity

from twopc.testing import crash_points
from twopc.testing.kill_loop.kills import Moment
from twopc.testing.kill_loop.records import SCHEMA, Reader
from twopc.testing.kill_loop.run import entered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from twopc.testing.kill_loop.run import Run
#: Spark Connect gives a ``foreachBatch`` worker process 10 s to start. A busy machine may need longer. A retry is safe.
_START: Final = tenacity.Retrying(
    stop=tenacity.stop_after_attempt(5),
    retry=tenacity.retry_if_exception_message(match=".*Python worker failed to connect back"),
    reraise=True,
)


def _function(target: str) -> Any:
    if target.endswith(".pickle"):
        return pickle.loads(Path(target).read_bytes())  # noqa: S301 - our own process wrote the bytes
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _session(run: Run) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Spark's gateway must not start before the environment is set up

    if run.server:
        return SparkSession.builder.remote(run.server).getOrCreate()
    session: SparkSession = SparkSession.builder.config(map=dict(run.spark)).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _source(session: SparkSession, reader: Reader) -> DataFrame:
    stream = session.readStream.format(reader.format).options(**reader.options)
    if reader.format == "json":
        stream = stream.schema(SCHEMA)
    return stream.load().selectExpr(*reader.columns)


def _writer(run: Run, session: SparkSession) -> DataStreamWriter:
    from twopc.testing.kill_loop import moments  # noqa: PLC0415 - this module imports Spark

    frame, function = _source(session, run.reader), _function(run.target)
    if run.kill is not None:
        frame = moments.gated(frame, run.kill, run.reached)
        if run.server or run.kill.moment in {Moment.BEFORE, Moment.AFTER}:
            moments.hold_functions(type(frame.writeStream), run.kill, run.reached)
    made: DataStreamWriter = (
        function(frame, run.checkpoint) if run.is_query else frame.writeStream.foreachBatch(function)
    )
    return made


def main() -> None:
    """Run the query described on the command line."""
    run = entered(sys.argv[1])
    if not run.server:  # a server's processes arm themselves; a client passes no point
        crash_points.arm_from_environment()
    session = _session(run)
    writer = _writer(run, session).option("checkpointLocation", run.checkpoint).trigger(availableNow=True)
    query: StreamingQuery = _START(writer.start)
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
