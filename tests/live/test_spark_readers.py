"""One job reads a shuffle more than once, or Spark keeps what it read, and an executor dies in between (rule 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.shared_shuffles import MAPS, OURS, READERS
from tests.live.test_spark_executors import executor_of
from tests.live.test_spark_threads import NOT_BEFORE, THREADS, open_gate, refused_and_restarted, tasks, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService
    from tests.live.spark_support import Run

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]


def lose_a_part_that_was_read(run: Run, count: int) -> None:
    """Kill an executor once this number of reading tasks has read the shuffle. One of them runs on the other executor."""
    wait_for(run, lambda: len(tasks(run, MAPS)) == 4, "the shuffle's tasks have started")
    executors = {executor_of(one.worker) for one in tasks(run, MAPS)}
    open_gate(run, MAPS)
    wait_for(run, lambda: len(tasks(run, READERS, OURS)) == count, "the tasks have read the shuffle")
    kept = executor_of(tasks(run, READERS, OURS)[0].worker)
    [lost] = executors - {kept}
    lost.kill()
    wait_for(run, lambda: "Lost executor" in run.text, "Spark has noticed")
    open_gate(run, READERS)


def test_a_shuffle_read_by_two_stages_before_and_after_a_loss_stops_the_query(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """The first of them has read everything. The second job makes Spark rewrite the lost part."""
    with refused_and_restarted(kafka, tmp_path, "union", "nobody", spark=THREADS | NOT_BEFORE) as run:
        lose_a_part_that_was_read(run, 1)


@pytest.mark.parametrize(
    ("plan", "shown"),
    [
        ("joined", {}),
        ("planned", {}),
        # Spark's documentation recommends a small value if the driver runs out of memory. With 0, Spark shows no plan.
        pytest.param("planned", {"spark.sql.maxPlanStringLength": "0"}, id="planned-cut_short"),
    ],
)
def test_a_broadcast_that_reads_a_shuffle_before_and_after_a_loss_stops_the_query(
    plan: str, shown: dict[str, str], kafka: KafkaService, tmp_path: Path
) -> None:
    """Spark keeps the broadcast rows: a retry would use them again, and the query makes them before it calls the function."""
    spark = THREADS | NOT_BEFORE | shown
    with refused_and_restarted(kafka, tmp_path, plan, "nobody", settings={"write_by": "driver"}, spark=spark) as run:
        lose_a_part_that_was_read(run, 4)


@pytest.mark.parametrize("plan", ["collected", "late"])
def test_rows_that_the_function_collected_before_and_after_a_loss_stop_the_query(
    plan: str, kafka: KafkaService, tmp_path: Path
) -> None:
    """The function gives the rows back to Spark through Arrow, so the plan contains the rows themselves.

    A function may call ``exactly_once()`` for each batch, even after it has collected the rows.
    """
    spark = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",  # otherwise, Spark 4.2 ends the function's job
    }
    with refused_and_restarted(kafka, tmp_path, plan, "nobody", spark=THREADS | NOT_BEFORE | spark) as run:
        lose_a_part_that_was_read(run, 4)
