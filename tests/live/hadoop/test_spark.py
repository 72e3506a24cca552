"""Queries with their checkpoint on a real HDFS, and on a real S3 server, under kills."""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.file_query import counters
from tests.live.hadoop.jars import s3_client_jars
from tests.live.hadoop.s3 import BUCKET
from tests.live.redis.services import RedisService
from tests.live.spark_support import KILLED, Pipeline, wait_until
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.redis import LocalRedis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live.hadoop.hdfs import LocalHdfs
    from tests.live.hadoop.s3 import LateListing
    from tests.live.services import KafkaService

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

#: One crash point for each kind of state in which a checkpoint can be left. Only the first run that decides passes
#: ``driver.bound``, so the points before it in the protocol come first.
POINTS = ("driver.acquired", "driver.confirmed", "driver.bound", "driver.decided", "driver.committing", "driver.swept")
#: Each start also loads Hadoop's client. On a busy machine, this took longer than the two minutes for which other tests
#: wait.
PATIENCE_S = 600
#: How often a client tries to reach a dead namenode. With Hadoop's default, it waits a few minutes.
IMPATIENT = {"spark.hadoop.ipc.client.connect.max.retries": "3"}


@pytest.fixture
def pipeline(
    request: pytest.FixtureRequest, kafka: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipeline]:
    """A query into Kafka that keeps its rows, too; its checkpoint is on the file system that the test asks for."""
    directory = uuid.uuid4().hex
    if request.param == "hdfs":
        cluster: LocalHdfs = request.getfixturevalue("hdfs")
        checkpoint, staging, spark = f"{cluster.url}/{directory}", str(tmp_path / "staging"), IMPATIENT
    else:
        s3: LateListing = request.getfixturevalue("s3")
        checkpoint, staging = f"s3a://{BUCKET}/{directory}", f"s3://{BUCKET}/{directory}-staging"
        jars = ",".join(map(str, [*spark_kafka_jars(), *s3_client_jars()]))
        spark = {**s3.spark_settings(), "spark.jars": jars}
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
    settings = {"staging": staging, "checkpoint_location": None}  # taken from the calling query
    made = Pipeline(
        kafka.bootstrap_servers, tmp_path, checkpoint=checkpoint, settings=settings, spark=spark, max_offsets=20
    )
    yield made
    made.close()


@pytest.mark.parametrize("pipeline", ["hdfs", "s3"], indirect=True)
def test_a_driver_killed_at_any_kind_of_step_loses_and_duplicates_nothing(pipeline: Pipeline) -> None:
    for point in POINTS:
        pipeline.feed(20)
        run = pipeline.process(f"{point}=kill")
        assert run.ended(PATIENCE_S) == KILLED, f"{point}: {run.text[-3000:]}"
    pipeline.feed(20)
    last = pipeline.process()
    assert last.ended(PATIENCE_S) == 0, last.text[-3000:]
    pipeline.require_exactly_once()
    pipeline.require_order()


@pytest.mark.parametrize("pipeline", ["hdfs", "s3"], indirect=True)
@pytest.mark.parametrize("point", ["driver.confirmed", "driver.bound"])
def test_a_driver_that_wakes_before_its_first_decision_is_fenced_and_does_no_harm(
    pipeline: Pipeline, point: str
) -> None:
    """``confirmed``: the driver writes the binding after another driver has written it.

    ``bound``: the driver has already written the binding.
    """
    pipeline.feed(20)
    paused = pipeline.process(f"{point}=stop")
    paused.wait_stopped(PATIENCE_S)
    healthy = pipeline.process()
    assert healthy.ended(PATIENCE_S) == 0, healthy.text[-3000:]
    paused.resume()
    assert paused.ended(PATIENCE_S) != 0
    assert "FencedError" in paused.text
    pipeline.feed(20)
    last = pipeline.process()
    assert last.ended(PATIENCE_S) == 0, last.text[-3000:]
    pipeline.require_exactly_once()


@pytest.mark.parametrize("pipeline", ["hdfs"], indirect=True)
def test_a_namenode_that_dies_and_comes_back_loses_and_duplicates_nothing(pipeline: Pipeline, hdfs: LocalHdfs) -> None:
    """The query waits for the namenode, or stops and is started again."""
    for _ in range(2):
        pipeline.feed(60)
        run = pipeline.process("driver.decided@2=stop")
        run.wait_stopped(PATIENCE_S)
        hdfs.namenode.kill()
        run.resume()
        hdfs.namenode.start()
        assert run.ended(PATIENCE_S) in {0, 1}, run.text[-3000:]
        # A query that is started while the namenode is in safe mode ends before its first batch.
        wait_until(lambda: hdfs.namenode.takes_writes, "the namenode has left safe mode")
    last = pipeline.process()
    assert last.ended(PATIENCE_S) == 0, last.text[-3000:]
    pipeline.require_exactly_once()


def test_decisions_on_hdfs_survive_kills_of_drivers_and_the_namenode(hdfs: LocalHdfs, tmp_path: Path) -> None:
    """A Redis sink alone: registers on HDFS are the decision log."""
    source = tmp_path / "source"
    source.mkdir()
    expected: Counter[str] = Counter()
    name = f"q{uuid.uuid4().hex[:10]}"
    with LocalRedis() as redis:
        given = {"name": name, "url": redis.url, "source": str(source), "checkpoint": f"{hdfs.url}/{name}"}

        def run(faults: str) -> int | None:
            rows = [{"id": f"k{number % 3}", "n": number} for number in range(10)]
            file = tmp_path / f"{len(list(source.iterdir())):06d}.json"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            file.rename(source / file.name)
            for row in rows:
                expected[str(row["id"])] += int(str(row["n"]))
            log = tmp_path / "log"
            script = str(Path(__file__).with_name("redis_query.py"))
            options = json.dumps({**given, "spark": IMPATIENT})
            command = ["env", f"TWOPC_CRASH_POINTS={faults}", sys.executable, script, options]
            process = GuardedProcess(command, log=log, cwd=tmp_path)
            try:
                return process.wait(PATIENCE_S)
            finally:
                process.kill()

        for point in POINTS:
            assert run(f"{point}=kill") == KILLED, f"{point}: {(tmp_path / 'log').read_text()[-3000:]}"
            if point == "driver.decided":
                hdfs.namenode.kill()
                hdfs.namenode.start()
        assert run("") == 0, (tmp_path / "log").read_text()[-3000:]
        assert counters(RedisService(redis.url), name) == expected
