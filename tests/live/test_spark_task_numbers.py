"""Code that asks Spark for its task runs in one task per partition of the plan, however few tasks may write."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from tests.live.delta.test_spark import COLUMNS, contents, created
from tests.live.file_query import Query
from tests.live.spark_support import BY_TASKS, spark
from twopc import CheckpointConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from twopc.integration.spark import ExactlyOnce

__all__ = ["spark"]

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

PARTITIONS = 8
ROWS: list[dict[str, Any]] = [{"id": f"k{number}", "n": number} for number in range(64)]


def with_ids(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Build an id from the number of the task and the number of the row in the task."""
    context = TaskContext.get()
    assert context is not None
    count = 0
    for frame in frames:
        frame["id"] = [f"{context.partitionId()}-{count + number}" for number in range(len(frame))]
        count += len(frame)
        yield frame


def in_barrier_mode(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def in_function(change: Callable[[DataFrame], DataFrame]) -> dict[str, Any]:
    def function(each: ExactlyOnce) -> Callable[[DataFrame, int], None]:
        return lambda batch, batch_id: each(change(batch), batch_id)

    return {"function": function}


def numbered(frame: DataFrame) -> DataFrame:
    return frame.repartition(PARTITIONS).mapInPandas(with_ids, frame.schema)


def together(frame: DataFrame) -> DataFrame:
    return frame.repartition(2).mapInPandas(in_barrier_mode, frame.schema, barrier=True)


@pytest.mark.parametrize(
    ("most", "change"),
    [
        pytest.param(2, in_function(numbered), id="in the function"),
        pytest.param(2, {"plan": numbered}, id="in the query"),
        pytest.param(1, in_function(together), id="in barrier mode"),
    ],
)
def test_ids_of_one_batch_do_not_collide(
    most: int, change: dict[str, Any], spark: SparkSession, tmp_path: Path
) -> None:
    sink = created(tmp_path, COLUMNS)
    settings = {**BY_TASKS, "checkpoints": CheckpointConfig(max_writers=most)}
    query = Query(spark, tmp_path, (sink,), settings, **change)
    query.feed(*ROWS)
    query.run()
    found = contents(sink)
    assert sorted(row["n"] for row in found) == [row["n"] for row in ROWS]
    assert max(Counter(row["id"] for row in found).values()) == 1
