"""Under Spark Connect, a thread of the function counts the batch while it is written, and an executor dies (rule 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.live.shared_shuffles import GO, MAPS, OTHER, OURS, READERS
from tests.live.test_spark_checksums import CHECKSUMS
from tests.live.test_spark_executors import executor_of
from tests.live.test_spark_threads import THREADS, open_gate, refused_and_restarted, tasks, wait_for

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

pytestmark = [
    pytest.mark.whole,
    pytest.mark.timeout(900),
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark compares the rows of a shuffle from 4.1 on"),
]


def test_a_shuffle_that_another_thread_makes_spark_write_again_while_it_is_read(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Spark sees that the new rows differ. It ends our job, whose task has read some of the old rows."""
    refusal = "Restart the query: it computes the whole batch again"
    options: dict[str, Any] = {"spark": THREADS | CHECKSUMS, "is_connect": True, "refusal": refusal}
    with refused_and_restarted(kafka, tmp_path, "after", "thread", **options) as run:
        wait_for(run, lambda: len(tasks(run, MAPS)) == 4, "the shuffle's tasks have started")
        executors = {executor_of(one.worker) for one in tasks(run, MAPS)}
        open_gate(run, MAPS)
        wait_for(run, lambda: len(tasks(run, READERS, OURS)) == 1, "our task has read a part of the shuffle")
        [ours] = tasks(run, READERS, OURS)
        kept = executor_of(ours.worker)
        [lost] = executors - {kept}
        lost.kill()
        (run.root / GO).touch()

        def is_known() -> bool:
            """The executor of our task forgets where the old rows were once it runs a task that came later."""
            return any(executor_of(one.worker) == kept for one in tasks(run, READERS, OTHER))

        wait_for(run, is_known, "the other thread's tasks have read the shuffle")
        open_gate(run, READERS)
