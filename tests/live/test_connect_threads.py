"""Under Spark Connect, a thread of the function counts the batch while it is written, and an executor dies (rule 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.live.test_spark_checksums import CHECKSUMS
from tests.live.test_spark_threads import THREADS, lose_a_part_before_the_other_job, refused_and_restarted

pytest.importorskip("grpc", reason="Spark Connect needs it, and the group of Spark 3.5 lacks it")

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

pytestmark = [
    pytest.mark.whole,
    pytest.mark.calm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark compares the rows of a shuffle from 4.1 on"),
]


def test_a_shuffle_rewritten_for_another_thread_while_it_is_read_stops_the_query(
    kafka: KafkaService, tmp_path: Path
) -> None:
    """Spark sees that the new rows differ. Spark ends the batch's job, whose task has read some of the old rows."""
    refusal = "Restart the query, which will then recompute the whole batch"
    options: dict[str, Any] = {"spark": THREADS | CHECKSUMS, "is_connect": True, "refusal": refusal}
    with refused_and_restarted(kafka, tmp_path, "after", "thread", **options) as run:
        lose_a_part_before_the_other_job(run)
