"""Executes a program's text: with the reference, and with the product, interrupted and started again.

A program finds these names: the modules that people import; ``spark``, ``sc``; ``exactly_once``; the sinks ``one`` and ``two``;
``source()``, the stream, with the columns ``id``, ``tenant``, ``n`` and ``at``; ``static``, a table with ``tenant`` and
``label``; ``CHECKPOINT`` and ``CHECKPOINT_2``; ``PLACE``, a directory; ``RUN``, a name; and ``start``: ``start(stream, function,
checkpoint)`` starts the query ``stream.writeStream.foreachBatch(function)`` with this checkpoint, for all input that there is.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import random
import re
import sys
import threading
import time
import traceback
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyspark
from pyspark import StorageLevel
from pyspark.errors import StreamingQueryException
from pyspark.sql import Window
from pyspark.sql import functions as sf

from tests.users.recorder import RAW, Event, Recorder, program_name
from tests.users.reference import Reference, Rows
from twopc import CheckpointConfig, DriverUpTo
from twopc.integration.spark import exactly_once
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.users.program import Program
    from tests.users.reference import Call
    from tests.users.worlds import World

HUNG: Final = "hung"
#: The time limit for one small batch, on a busy machine.
_LIMIT_S: Final = 180.0
_STOP_LIMIT_S: Final = 20.0
_ERROR: Final = re.compile(r"[\w.$]*(?:Exception|Error)\b")


@dataclass
class Expected:
    """The outcome of the reference."""

    calls: list[Call]
    events: list[Event]


@dataclass
class Outcome:
    """The outcome of the product, over all runs of a program."""

    events: list[Event]
    visible: dict[str, Rows] = field(default_factory=dict)
    left_open: list[str] = field(default_factory=list)


def expected(program: Program, spark: SparkSession, world: World) -> Expected:
    """Run a program with the reference, without interruptions."""
    recorder = Recorder()
    reference = Reference(recorder)
    run_once(program, spark, world, recorder, reference.exactly_once, world.directory / "reference")
    return Expected(reference.calls, recorder.events)


def played(program: Program, spark: SparkSession, world: World, make: Callable[..., Any] = exactly_once) -> Outcome:
    """Run a program with the product: once for each interruption, and then to its end."""
    recorder = Recorder()
    for faults in (*program.faults, ""):
        recorder.is_dead = False
        crash_points.arm_from(faults)
        try:
            run_once(program, spark, world, recorder, make, world.directory / "product")
        finally:
            crash_points.disarm()
        if not recorder.is_dead:
            break
    outcome = Outcome(recorder.events)
    if not any(event.what == HUNG for event in outcome.events):
        outcome.visible, outcome.left_open = world.visible(), world.at_rest()
    return outcome


def run_once(
    program: Program, spark: SparkSession, world: World, recorder: Recorder, make: Callable[..., Any], directory: Path
) -> None:
    """Execute the text, and let its queries process all input, in a separate thread, here and in the JVM."""
    directory.mkdir(exist_ok=True)
    of_reference = directory.name == "reference"
    run = _Run(
        program, spark.newSession(), world, recorder, make, directory, evaluates=of_reference and program.is_stateful
    )
    with contextlib.redirect_stdout(io.StringIO()), _quiet_threads():
        thread = threading.Thread(target=run.execute, name=f"program-{program.seed}", daemon=True)
        thread.start()
        if not _ends(thread, recorder):
            recorder.note(Event(HUNG, text=_stacks()))
        run.close()


def _ends(thread: threading.Thread, recorder: Recorder) -> bool:
    """Wait until the program ends; False if nothing happens for too long."""
    heard = -1
    while thread.is_alive():
        if len(recorder.events) == heard:
            return False
        heard = len(recorder.events)
        thread.join(_LIMIT_S)
    return True


class _Run:
    """One process of a program, as it were."""

    def __init__(
        self,
        program: Program,
        spark: SparkSession,
        world: World,
        recorder: Recorder,
        make: Callable[..., Any],
        directory: Path,
        *,
        evaluates: bool,
    ) -> None:
        self._program = program
        self._spark = spark
        self._world = world
        self._recorder = recorder
        self._make = make
        self._directory = directory
        self._evaluates = evaluates
        self._queries: list[StreamingQuery] = []

    def execute(self) -> None:
        began = len(self._recorder.events)
        try:
            exec(compile(self._program.text, program_name(self._program.seed), "exec"), self._names())  # noqa: S102
        except Exception as error:  # noqa: BLE001 - a program may raise anything
            self._recorder.failed("program", error)
        for number, query in enumerate(self._queries):
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                self._note(number, str(error), self._recorder.events[began:])

    def close(self) -> None:
        for query in self._queries:
            with contextlib.suppress(Exception):  # the query has ended, or is already known to hang
                query.stop()
        for each in self._recorder.made:
            each.close()
        self._recorder.made.clear()
        self._spark.catalog.clearCache()

    def _note(self, number: int, text: str, events: list[Event]) -> None:
        """Record an error that is Spark's own; the function's errors are known already."""
        if self._recorder.is_dead or any(one.query == number and one.what == "function" for one in events):
            return
        if any(one.query == number and one.kind and one.text and one.text[:40] in text for one in events):
            return
        found = [name for name in _ERROR.findall(text) if "StreamingQueryException" not in name]
        batch = max((one.batch for one in events if one.query == number), default=-1)
        self._recorder.note(Event("query", number, batch, RAW, found[0] if found else "StreamingQueryException", text))

    def _start(self, stream: DataFrame, function: Any, checkpoint: str, mode: str = "append") -> StreamingQuery:
        if self._evaluates:
            function = _evaluating(function)
        watched = self._recorder.function(len(self._queries), function)
        writer = stream.writeStream.foreachBatch(watched).outputMode(mode).option("checkpointLocation", checkpoint)
        self._queries.append(writer.trigger(availableNow=True).start())
        return self._queries[-1]

    def _names(self) -> dict[str, Any]:
        spark, world = self._spark, self._world
        spark.conf.set("spark.sql.streaming.stopTimeout", f"{_STOP_LIMIT_S:.0f}s")
        sinks = dict(zip(("one", "two"), map(world.sink, range(world.sinks)), strict=False))
        return {
            "__name__": "user_program",  # no module's name, so that workers receive its functions as a whole
            "itertools": itertools,
            "functools": functools,
            "threading": threading,
            "ThreadPoolExecutor": ThreadPoolExecutor,
            "random": random,
            "time": time,
            "np": np,
            "pd": pd,
            "pyspark": pyspark,
            "StorageLevel": StorageLevel,
            "F": sf,
            "Window": Window,
            "spark": spark,
            "sc": spark.sparkContext,
            "CheckpointConfig": CheckpointConfig,
            "DriverUpTo": DriverUpTo,
            "exactly_once": self._recorder.maker(self._make),
            "source": functools.partial(world.source_of, spark),
            "static": spark.sql("SELECT * FROM VALUES ('a', 'alpha'), ('b', 'beta') AS labels (tenant, label)"),
            "start": self._start,
            "CHECKPOINT": str(self._directory / "checkpoint"),
            "CHECKPOINT_2": str(self._directory / "checkpoint-2"),
            "PLACE": str(self._directory),
            "RUN": uuid.uuid4().hex,
            **sinks,
        }


def _evaluating(function: Callable[[DataFrame, int], Any]) -> Callable[[DataFrame, int], None]:
    """The function, and then the whole batch: a state that is written in part cannot be read by the next batch (SPARK-52008)."""

    def evaluating(batch: DataFrame, batch_id: int) -> None:
        function(batch, batch_id)
        batch.write.format("noop").mode("overwrite").save()

    return evaluating


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """An error that ends a program's thread, or a warning, is its own affair; the product's errors are known."""
    before = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        threading.excepthook = before


def _stacks() -> str:
    return "\n".join(
        f"thread {thread}:\n{''.join(traceback.format_stack(frame)[-8:])}"
        for thread, frame in sys._current_frames().items()
    )
