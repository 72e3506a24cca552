"""A query that was stopped during a call: the call still finishes its batch, whatever other threads do meanwhile.

Spark reports a query as inactive as soon as ``stop()`` is called, while ``stop()`` still waits for the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.file_query import BATCHES, Query, kafka_sink, values
from tests.live.spark_support import message_of, spark, wait_until
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

    #: What another thread does with the stopped query's object, and with another query.
    Meanwhile = Callable[[ExactlyOnce, Query], None]

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@dataclasses.dataclass
class Pause:
    """A pause during a call."""

    has_begun: threading.Event = dataclasses.field(default_factory=threading.Event)
    may_end: threading.Event = dataclasses.field(default_factory=threading.Event)

    def wait(self) -> None:
        self.has_begun.set()
        assert self.may_end.wait(120)

    @contextlib.contextmanager
    def stopping(self, running: StreamingQuery) -> Iterator[None]:
        """Stop the query during the pause, and run the body meanwhile. Then end the pause, and wait for ``stop()``."""
        stopping = threading.Thread(target=running.stop)
        try:
            wait_until(lambda: self.has_begun.is_set() or not running.isActive, "the pause")
            stopping.start()
            wait_until(lambda: not running.isActive, "Spark reports the query as inactive")
            yield
        finally:
            self.may_end.set()
            if stopping.ident is not None:  # otherwise, the pause did not begin
                stopping.join()


def fed(spark: SparkSession, directory: Path, kafka: KafkaService) -> Query:
    directory.mkdir()
    query = Query(spark, directory, (kafka_sink(kafka.bootstrap_servers),), {"write_by": "driver"})
    query.feed(*BATCHES[0])
    return query


def another_query_starts(each: ExactlyOnce, other: Query) -> None:
    del each
    other.run()


def its_object_is_closed(each: ExactlyOnce, other: Query) -> None:
    del other
    each.close()


@pytest.mark.parametrize(
    "meanwhile", [pytest.param(another_query_starts, marks=pytest.mark.whole), its_object_is_closed]
)
def test_a_query_that_was_stopped_after_a_decision_commits_the_batch_before_it_ends(
    meanwhile: Meanwhile, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    old, new = (fed(spark, tmp_path / name, kafka) for name in ("old", "new"))
    pause = Pause()
    crash_points.arm("driver.decided", pause.wait)
    try:
        running, each = old.start()
        with pause.stopping(running):
            meanwhile(each, new)
    finally:
        crash_points.disarm()
    assert running.exception() is None
    assert values(old.sinks[0]) == Counter(["2", "3"])
    each.close()


def test_a_stopped_query_still_refuses_a_second_call_for_its_batch(
    kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    """Its function closes the object between the calls."""
    query, pause = fed(spark, tmp_path / "query", kafka), Pause()

    def in_two_parts(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, batch_id: int) -> None:
            each(batch.where("id = 'odd'"), batch_id)
            pause.wait()
            each.close()
            each(batch.where("id = 'even'"), batch_id)

        return write

    query.function = in_two_parts
    running, each = query.start()
    with pause.stopping(running):
        pass
    error = running.exception()
    each.close()
    assert error is not None and "second call for batch 0" in message_of(error)
    assert values(query.sinks[0]) == Counter(["3"])
