"""A stateful query of many partitions is killed at random moments and restarted with a different number of cores.

Each number of cores has a different number of writers, so a replay groups the plan's partitions differently.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark
import pytest

from tests.live.spark_support import BY_TASKS, Pipeline, processes_of, wait_until
from tests.live.test_spark_many_tasks import log_of
from tests.reader import records
from twopc.records import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.live.services import KafkaService
    from tests.live.spark_support import Run

PARTITIONS = 64
MASTERS = ("local[1]", "local[2]", "local[3]", "local-cluster[2,1,1024]")
LAST, MOST_SLOTS = "local[4]", 4
#: The number of rows in a batch, and the number of keys. The source has one partition, so the batches do not depend on
#: the kills.
ROWS, KEYS = 100, 250
#: The longest time between a batch and the kill.
LONGEST_S = 3.0
_STORE = "spark.sql.streaming.stateStore"
_ROCKS_DB = {f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
_EXECUTORS = {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


@pytest.mark.whole
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("plan", "store"),
    [
        pytest.param("update", {}, id="hdfs"),
        pytest.param("update", _ROCKS_DB, id="rocksdb"),
        pytest.param(  # Spark's own batches take much longer
            "transformed",
            _ROCKS_DB,
            id="transformWithState",
            marks=pytest.mark.skipif(pyspark.__version__ < "4.0", reason="from Spark 4.0 on"),
        ),
    ],
)
def test_a_killed_query_counts_exactly_with_any_number_of_cores(
    plan: str, store: dict[str, str], kafka: KafkaService, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    """Kills either the driver alone, whose JVM and executors outlive it for a while, or everything together.

    A kill comes at a random time after a run has completed none or some of its batches.
    """
    kills = max(len(MASTERS), int(os.environ.get("TWOPC_KILLS", "0")))
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    chance = random.Random(seed)
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path, partitions=1, plan=plan, max_offsets=ROWS, settings=BY_TASKS)
    pipeline.change(partitions=PARTITIONS)
    expected, counts = Counter[str](), Counter[str]()
    outcomes: list[str] = []

    def feed(batches: int) -> None:
        for _ in range(batches):
            fed = Counter(value.partition("-")[0] for value in pipeline.feed(ROWS, keys=KEYS))
            counts.update(fed)
            expected.update(f"{key}:{counts[key]}" for key in fed)

    try:
        for master, batches in islice(drawn(chance), kills):
            is_killed = False
            while not is_killed:
                feed(batches + 1)
                until = last_batch(pipeline) + batches
                run = pipeline.process(spark={"spark.master": master, **store, **_EXECUTORS})
                await_batch(pipeline, until, run)
                is_killed = killed(run, chance.uniform(0, LONGEST_S), only_driver=chance.random() < 0.5)
                outcomes.append(f"{master}, {batches} batches: {'killed' if is_killed else 'ended'}")
        for previous in pipeline.runs:
            kill_everything(previous)
        feed(2)
        last = pipeline.process(spark={"spark.master": LAST, **store})
        assert last.ended(1200) == 0, last.text[-3000:]
    finally:
        for previous in pipeline.runs:
            kill_everything(previous)
        add_summary(f"TWOPC_SEED={seed}, {outcomes}")
    assert pipeline.visible() == expected
    require_order(pipeline)
    decisions = [one for one in log_of(pipeline) if isinstance(one, Decision)]
    writers = Counter(len(one.tasks) for one in decisions)
    add_summary(f"batches by number of writers: {dict(sorted(writers.items()))}")
    assert len(writers) > 1
    assert max(writers) <= 2 * MOST_SLOTS
    assert any(sum(len(task.parts) for task in one.tasks) > PARTITIONS / 2 for one in decisions)


def drawn(chance: random.Random) -> Iterator[tuple[str, int]]:
    """The masters in a random order, and again in a different order; for each, after how many batches the kill comes."""
    while True:
        count = len(MASTERS)
        yield from zip(chance.sample(MASTERS, count), chance.sample(range(count), count), strict=True)


def last_batch(pipeline: Pipeline) -> int:
    """The last batch that Spark has recorded as done."""
    commits = Path(pipeline.options.checkpoint) / "commits"
    return max((int(file.name) for file in commits.glob("*") if file.name.isdigit()), default=-1)


def await_batch(pipeline: Pipeline, number: int, run: Run) -> None:
    """Wait until Spark has recorded this batch as done, or the run has ended."""
    run.wait_running()
    wait_until(lambda: last_batch(pipeline) >= number or run.wait(0) is not None, f"{run.log}: batch {number}", 600)


def killed(run: Run, after_s: float, *, only_driver: bool) -> bool:
    """Kill a run after some time. Returns False if the run ends first."""
    code = run.wait(after_s)
    if code is None:
        run.kill_driver() if only_driver else kill_everything(run)
        return True
    # The previous JVM may still be using its checkpoint. In that case, Spark itself refuses the next JVM.
    assert code == 0 or "oncurrent" in run.text, run.text[-3000:]
    return False


def kill_everything(run: Run) -> None:
    """Kill the driver, its JVM, its executors and the Python workers, which form separate process groups."""
    for process in processes_of(run.session):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    run.kill_all()


def require_order(pipeline: Pipeline) -> None:
    """Require that the counts of each key grow in the order of the output."""
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for message in records(pipeline.bootstrap_servers, str(pipeline.options.topic)):
        by_key[message.key() or b""].append(int((message.value() or b"").rpartition(b":")[2]))
    assert all(found == sorted(found) for found in by_key.values())
