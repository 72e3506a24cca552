"""Write running sums of odd and even numbers, the classic checkpoint example, to several sinks, and kill the query.

Integers come from a Kafka topic with two partitions. Spark keeps a sum and a count for each kind (RocksDB, changelog
checkpoints). Each batch writes the new totals to Redis and HBase (upserts), adds the batch's sum to a counter in Redis
(increments), and writes both to Kafka (an event). The example kills the query just after its output has changed (SIGKILL:
driver, JVM, workers), and restarts it.

    python examples/odd_even_sums.py                # 6000 numbers, 3 kills, this toolkit and an ordinary foreachBatch
    python examples/odd_even_sums.py --kills 5 --seed 7 --skip-usual

With an at-least-once sink, upserts of totals stay correct, because the last write wins. Increments and events do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import redis
import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hbasedriver.client.table import Table as HBaseTable
from hbasedriver.master import MasterConnection
from hbasedriver.operations.column_family_builder import ColumnFamilyDescriptorBuilder
from hbasedriver.operations.get import Get
from hbasedriver.operations.put import Put as HBasePut
from hbasedriver.zk import locate_master
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from twopc import KafkaSink, exactly_once
from twopc.integration.services.class_data import driver_flags
from twopc.integration.services.hbase import LocalHBase
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.java import java_home
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.services.query_processes import QueryProcesses
from twopc.integration.services.redis import LocalRedis
from twopc.sinks.hbase import HBaseSink, Put
from twopc.sinks.redis import HashIncrBy, HashSet, RedisSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

SOURCE = "numbers"
KINDS = ("even", "odd")
COLUMNS = "kind STRING, total BIGINT, numbers BIGINT, added BIGINT"
STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
STATE = "total BIGINT, numbers BIGINT"
RUN_TIMEOUT_S = 300


@dataclass(frozen=True)
class Spec:
    """Describes one pipeline.

    ``name`` selects how the pipeline writes, and names its topic, its HBase table and its Redis key prefix.
    """

    name: str
    bootstrap_servers: str
    redis_url: str
    zookeeper: str
    scratch: str
    batch: int

    @property
    def checkpoint(self) -> str:
        """The directory of Spark's checkpoint."""
        return f"{self.scratch}/checkpoint"


# -- the query, as a user would write it -------------------------------------------------------------------------------


def running_sums(numbers: DataFrame) -> DataFrame:
    """Make one row for each kind in a batch: the total, the count of numbers so far, and the sum that the batch added."""
    return (
        # Make only one row for each kind. With several rows, PySpark 4.0.0 turns their positions in the state into floats, which
        # pyarrow 26 rejects.
        numbers.coalesce(1)
        .mapInPandas(_sums_of_batch, "kind STRING, added BIGINT, numbers BIGINT")
        .groupBy("kind")
        .applyInPandasWithState(_add, COLUMNS, STATE, "update", "NoTimeout")
    )


def _sums_of_batch(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    numbers = pd.concat([batch["number"] for batch in batches])
    kinds = numbers.groupby(numbers.mod(2).map(dict(enumerate(KINDS))))
    yield kinds.agg(["sum", "count"]).set_axis(["added", "numbers"], axis=1).rename_axis("kind").reset_index()


def _add(key: tuple[str], batches: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total, count = state.get if state.exists else (0, 0)
    [batch] = batches
    added, numbers = int(batch["added"].iloc[0]), int(batch["numbers"].iloc[0])
    state.update((total + added, count + numbers))
    yield pd.DataFrame({"kind": key, "total": [total + added], "numbers": [count + numbers], "added": [added]})


def write_exactly_once(sums: DataFrame, spec: Spec) -> Any:
    """Write to Kafka, Redis and HBase with one decision."""
    name, url = spec.name, spec.redis_url
    events = KafkaSink(name=f"{name}-events", bootstrap_servers=spec.bootstrap_servers, topic=name)
    totals = RedisSink(name=f"{name}-totals", url=url, mapping=HashSet(f"{name}:total:{{kind}}", ("total", "numbers")))
    added = RedisSink(name=f"{name}-added", url=url, mapping=HashIncrBy(f"{name}:added:{{kind}}", ("added",)))
    mapping = Put(row="{kind}", cells={"d:total": "total", "d:numbers": "numbers"})
    rows = HBaseSink(name=f"{name}-rows", zookeeper=spec.zookeeper, table=name, mapping=mapping)
    select = {events.name: ["kind AS key", "to_json(struct(*)) AS value"]}
    each = exactly_once(events, totals, rows, added, select=select)
    return sums.writeStream.foreachBatch(each)


def write_as_usual(sums: DataFrame, spec: Spec) -> Any:
    """Write with an ordinary foreachBatch function, as in many guides: at least once."""

    def write(batch: DataFrame, _: int) -> None:
        batch.persist()
        kafka = {"kafka.bootstrap.servers": spec.bootstrap_servers, "topic": spec.name}
        batch.selectExpr("kind AS key", "to_json(struct(*)) AS value").write.format("kafka").options(**kafka).save()
        with contextlib.closing(redis.Redis.from_url(spec.redis_url)) as client, hbase_table(spec) as table:
            for row in batch.collect():
                put = HBasePut(row.kind.encode()).add_column(b"d", b"total", b"%d" % row.total)
                table.put(put.add_column(b"d", b"numbers", b"%d" % row.numbers))
                client.hset(f"{spec.name}:total:{row.kind}", mapping={"total": row.total, "numbers": row.numbers})
                client.hincrby(f"{spec.name}:added:{row.kind}", "added", row.added)
        batch.unpersist()

    return sums.writeStream.foreachBatch(write)


WAYS = {"exactly-once": write_exactly_once, "as-usual": write_as_usual}


def hbase_table(spec: Spec) -> Any:
    """Open the pipeline's table with an ordinary HBase client."""
    return HBaseTable({"hbase.zookeeper.quorum": spec.zookeeper}, b"default", spec.name.encode())


def run_query(spec: Spec) -> None:
    """Process all numbers in the topic, then return."""
    spark = _session(spec)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", spec.bootstrap_servers)
    source = source.options(subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=spec.batch)
    numbers = source.load().selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    writer = WAYS[spec.name](running_sums(numbers), spec).outputMode("update")
    writer.option("checkpointLocation", spec.checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _session(spec: Spec) -> SparkSession:
    settings: dict[str, Any] = {
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
        "spark.sql.streaming.stateStore.providerClass": f"{STATE_PACKAGE}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": spec.scratch,
        "spark.driver.extraJavaOptions": f"{driver_flags()} -Djava.io.tmpdir={spec.scratch}",
        "spark.ui.enabled": "false",
    }
    return SparkSession.builder.master("local[2]").appName(spec.name).config(map=settings).getOrCreate()


# -- around the query: services, kills, readers ---------------------------------------------------------------------------


def create_topic(bootstrap_servers: str, name: str, *, partitions: int) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # must outlive the request
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()


def make_outputs(spec: Spec) -> None:
    """Create the topic and the table."""
    create_topic(spec.bootstrap_servers, spec.name, partitions=1)
    master: Any = MasterConnection()  # type: ignore[no-untyped-call]
    master.connect(*locate_master([spec.zookeeper]))
    master.create_table(b"default", spec.name.encode(), [ColumnFamilyDescriptorBuilder(b"d").build()])


def feed(bootstrap_servers: str, numbers: int) -> dict[str, int]:
    """Fill the topic, and return the true sums."""
    create_topic(bootstrap_servers, SOURCE, partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 50})
    for number in range(1, numbers + 1):
        producer.produce(SOURCE, str(number), partition=number // 2 % 2)
        producer.poll(0)
    producer.flush()
    return {"even": sum(range(2, numbers + 1, 2)), "odd": sum(range(1, numbers + 1, 2))}


def seen(spec: Spec) -> dict[str, dict[str, int]]:
    """Read each kind's sum from each sink, as a reader sees it: totals, increments, and the sum of all events."""
    with contextlib.closing(redis.Redis.from_url(spec.redis_url)) as client:
        totals = {kind: int(client.hget(f"{spec.name}:total:{kind}", "total") or 0) for kind in KINDS}
        added = {kind: int(client.hget(f"{spec.name}:added:{kind}", "added") or 0) for kind in KINDS}
    found = {"Redis, totals (upserts)": totals, "Redis, increments": added}
    with hbase_table(spec) as table:
        rows = {kind: table.get(Get(kind.encode())) for kind in KINDS}
    found["HBase, totals (upserts)"] = {kind: int(row.get(b"d", b"total") or 0) for kind, row in rows.items()}
    events = dict.fromkeys(KINDS, 0)
    for event in read(spec):
        events[event["kind"]] += event["added"]
    return {**found, "Kafka, events added up": events}


def read(spec: Spec) -> Iterator[Any]:
    """Read every committed event."""
    settings = {"bootstrap.servers": spec.bootstrap_servers, "group.id": "reader", "isolation.level": "read_committed"}
    with contextlib.closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(spec.name, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            yield json.loads(message.value() or b"")


def play(spec: Spec, kills: int, chance: random.Random, console: Console) -> None:
    """Run the query until it has processed all numbers, and kill it several times, just after its output has changed."""
    make_outputs(spec)
    os.environ.update(JAVA_HOME=str(java_home()), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    command = [sys.executable, __file__, "query", json.dumps(asdict(spec))]
    for run in range(kills + 1):
        moves = chance.randint(1, 2) if run < kills else 0
        with QueryProcesses(command, log=Path(spec.scratch) / f"{run}.log", cwd=Path(spec.scratch)) as processes:
            killed = _watch(processes, spec, moves)
        if killed:
            console.print(f"{spec.name}: killed, kill {run + 1} of {kills}")
        elif processes.exit_code != 0:
            raise RuntimeError(f"{spec.name} failed:\n{(Path(spec.scratch) / f'{run}.log').read_text()[-3000:]}")


def _watch(processes: QueryProcesses, spec: Spec, moves: int) -> bool:
    """Wait until the query stops, or kill it as soon as a sum in Redis has grown ``moves`` times (0: never)."""
    deadline, key = time.monotonic() + RUN_TIMEOUT_S, f"{spec.name}:added:odd"
    with contextlib.closing(redis.Redis.from_url(spec.redis_url)) as client:
        sums = {client.hget(key, "added")}
        while processes.exit_code is None and time.monotonic() < deadline:
            sums.add(client.hget(key, "added"))
            if moves and len(sums) > moves:
                processes.kill()
                return True
            time.sleep(0.002)
    return False


def main(
    numbers: Annotated[int, typer.Option(min=100, help="The number of integers to write.")] = 6000,
    kills: Annotated[int, typer.Option(min=0, help="The number of times to kill each pipeline.")] = 3,
    seed: Annotated[int | None, typer.Option(help="The random seed that decides when each pipeline is killed.")] = None,
    skip_usual: Annotated[bool, typer.Option("--skip-usual", help="Run only this toolkit's sinks.")] = False,  # noqa: FBT002
) -> None:
    """Run the example and print the sums that readers see. Exit with status 1 if this toolkit's sums are wrong."""
    console = Console(highlight=False)
    seed = random.randrange(10**6) if seed is None else seed
    console.print(f"odd and even sums: {numbers} numbers, {kills} kills, seed {seed}")
    with (
        tempfile.TemporaryDirectory(prefix="twopc-sums-", ignore_cleanup_errors=True) as directory,
        LocalKafka() as kafka,
        LocalRedis() as server,
        LocalHBase() as hbase,
    ):
        truth = feed(kafka.bootstrap_servers, numbers)
        found = {}
        for name in list(WAYS)[: 1 if skip_usual else 2]:
            scratch = Path(directory) / name
            scratch.mkdir()
            batch = max(1, numbers // (4 * (kills + 1)))
            spec = Spec(name, kafka.bootstrap_servers, server.url, hbase.zookeeper, str(scratch), batch)
            play(spec, kills, random.Random(f"{name} {seed}"), console)
            found[name] = seen(spec)
    _show(truth, found, console)
    if any(sums != truth for sums in found["exactly-once"].values()):
        raise typer.Exit(1)


def _show(truth: dict[str, int], found: dict[str, dict[str, dict[str, int]]], console: Console) -> None:
    table = Table("what a reader sees", *(f"{name}: {kind}" for name in found for kind in KINDS))
    table.add_row("the truth", *(f"{truth[kind]:,}" for _ in found for kind in KINDS))
    for sink in next(iter(found.values())):
        cells = [(found[name][sink][kind], truth[kind]) for name in found for kind in KINDS]
        table.add_row(sink, *(f"{value:,}" if value == true else f"[red]{value:,}[/]" for value, true in cells))
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["query"]:
        run_query(Spec(**json.loads(sys.argv[2])))
    else:
        typer.run(main)
