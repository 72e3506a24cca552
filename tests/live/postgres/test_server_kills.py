"""One decision over Kafka and PostgreSQL. The query and the PostgreSQL server are killed again and again, at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import psycopg
import pytest

from tests.live.pipeline import create_topic
from tests.reader import committed
from twopc import KafkaSink, exactly_once
from twopc.integration.services.jars import spark_kafka_jars
from twopc.sinks.postgres import PostgresSink
from twopc.testing.kill_loop.kills import planned
from twopc.testing.kill_loop.loop import KillLoop, QueryFailedError
from twopc.testing.kill_loop.records import Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from tests.live.services import KafkaService
    from twopc.integration.services.postgres import LocalPostgres
    from twopc.testing.kill_loop.kills import Kill

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("TWOPC_KILLS", "4"))


@dataclass
class KilledServer:
    """Kills the server at a random moment after every second batch, and starts it again after a random time."""

    server: LocalPostgres
    drawn: random.Random
    kills: int = 0
    last: int = -1

    def after_batch(self, batch: int) -> None:
        is_new, self.last = batch > self.last, batch  # each run begins with the previous run's last batch
        if is_new and batch % 2 == 0:
            time.sleep(self.drawn.uniform(0, 1))  # the moment of the fault
            self.server.kill()
            time.sleep(self.drawn.uniform(0, 2))  # the duration of the outage
            self.server.start()
            self.kills += 1


def numbers_in(dsn: str, table: str) -> list[int]:
    with contextlib.closing(psycopg.connect(dsn, autocommit=True)) as connection:
        return [number for (number,) in connection.execute(f"SELECT number FROM {table}".encode())]


def stopped_by(loop: KillLoop, kills: list[Kill]) -> QueryFailedError | None:
    """Run the query. Return None when it has processed all rows, or the error of a batch that failed with its server."""
    try:
        loop.run(kills)
    except QueryFailedError as error:
        if "twopc.errors.UnavailableError" not in str(error):
            raise
        return error
    return None


@pytest.mark.parametrize("vote", ["staged", "prepared"])
def test_a_table_and_a_topic_contain_every_row_once_although_the_query_and_the_server_are_killed(
    vote: Literal["staged", "prepared"],
    kafka: KafkaService,
    local_postgres: LocalPostgres,
    tmp_path: Path,
    add_summary: Callable[[str], None],
) -> None:
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    table, dsn = f"t{uuid.uuid4().hex[:10]}", local_postgres.dsn
    local_postgres.execute(f"CREATE TABLE {table} (number bigint NOT NULL, key text, value text)")
    topic = create_topic(kafka.bootstrap_servers, f"{table}-out")
    sinks = (
        KafkaSink(name=topic, bootstrap_servers=kafka.bootstrap_servers, topic=topic),
        PostgresSink(name=table, dsn=dsn, table=table, timeout_ms=20_000, vote=vote),
    )

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        each = exactly_once(*sinks, checkpoint_location=checkpoint)
        return frame.select("number", "key", "value").writeStream.foreachBatch(each)

    server = KilledServer(local_postgres, random.Random(seed))
    loop = KillLoop(
        read=lambda: numbers_in(dsn, table),
        query=query,
        source=Files(tmp_path / "loop" / "input"),
        directory=tmp_path / "loop",
        rows=20 * (KILLS + 1),
        batch_rows=5,
        spark={"spark.jars": ",".join(map(str, spark_kafka_jars()))},
        on_batch=server.after_batch,
    )
    restarts, kills = 0, planned(seed, KILLS, moments=(), crash_points=())
    while stopped_by(loop, kills[len(loop.kills) + len(loop.missed) :]):
        restarts += 1
        assert restarts <= server.kills
    outcome = loop.outcome(seed)
    add_summary(f"TWOPC_SEED={seed}, vote={vote}: {outcome}; {server.kills} kills of the server, {restarts} restarts")
    outcome.require_exactly_once()
    loop.outcome(seed, found=committed(kafka.bootstrap_servers, topic).elements()).require_exactly_once()
    assert loop.kills and server.kills
