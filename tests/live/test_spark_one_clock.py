"""The DataFrames of one batch see the same clock, although Spark plans and evaluates them one after another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from tests.live.file_query import Query, counted, counting, kafka_sink, values
from tests.live.spark_support import spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tests.live.services import KafkaService
    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

#: The rows' times cover half a minute before and after the call, because a busy machine may plan the batch seconds earlier.
STEPS = 1_200
STEP_MS = 50


def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Delay the first DataFrame by a second, so that the second DataFrame is planned later."""
    time.sleep(1)
    yield from batches


@pytest.mark.parametrize(
    ("clock", "is_cached"),
    [
        ("current_timestamp()", False),
        pytest.param("now()", True, marks=pytest.mark.whole, id="cached"),
        pytest.param("(SELECT now())", False, marks=pytest.mark.whole),
    ],
)
def test_no_rows_are_lost_if_a_batch_is_split_by_the_current_time(
    clock: str, *, is_cached: bool, kafka: KafkaService, spark: SparkSession, tmp_path: Path
) -> None:
    sinks = [kafka_sink(kafka.bootstrap_servers) for _ in range(2)]
    count = counting(tmp_path / "evaluated")
    late, orders = sorted(sinks, key=lambda sink: sink.name)  # the order in which Spark evaluates the DataFrames

    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        def write(batch: DataFrame, number: int) -> None:
            first_ms = int(time.time() * 1000) - STEPS * STEP_MS // 2
            timed = batch.withColumn("ts", sf.expr(f"timestamp_millis({first_ms} + n * {STEP_MS})"))
            if is_cached:
                timed = count(timed.withColumn("seen", sf.now())).persist()
            each(
                {
                    late.name: timed.where(f"ts < {clock}").drop("seen").mapInArrow(slowly, timed.drop("seen").schema),
                    orders.name: timed.where(f"ts >= {clock}"),
                },
                number,
            )
            timed.unpersist()

        return write

    query = Query(spark, tmp_path, tuple(sinks), function=function)
    query.feed(*({"id": str(number), "n": number} for number in range(STEPS)))
    query.run()
    assert values(late) + values(orders) == {str(number): 1 for number in range(STEPS)}
    assert values(late)
    assert not is_cached or counted(tmp_path / "evaluated") == STEPS
    assert values(orders)
