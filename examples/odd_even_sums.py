"""The classic illustration of checkpoints, with sinks: running sums of the odd and of the even numbers, under kills.

Integers come from a Kafka topic of two partitions. Spark keeps a sum and a count for each kind (RocksDB, changelog
checkpoints). Each batch writes the new totals to Redis (upserts, and increments by what the batch added), HBase (upserts) and
Kafka (an event with both). The query is killed when its output has just moved (SIGKILL: driver, JVM, workers) and restarted.

    python examples/odd_even_sums.py                # 6000 numbers, 3 kills, this toolkit and the usual foreachBatch
    python examples/odd_even_sums.py --kills 5 --seed 7 --skip-usual

Upserts of totals survive an at-least-once sink, because the last one wins. Whatever adds up does not.
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

import redis
import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hbasedriver.client.table import Table as HBaseTable
from hbasedriver.master import MasterConnection
from hbasedriver.operations.column_family_builder import ColumnFamilyDescriptorBuilder
from hbasedriver.operations.get import Get
from hbasedriver.operations.put import Put
from hbasedriver.zk import locate_master
from rich.console import Console
from rich.table import Table

from integration.services.class_data import driver_flags
from integration.services.hbase import LocalHBase
from integration.services.jars import spark_kafka_jars
from integration.services.java import java_home
from integration.services.kafka import LocalKafka
from integration.services.query_processes import QueryProcesses
from integration.services.redis import LocalRedis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

SOURCE = "numbers"
KINDS = ("even", "odd")
COLUMNS = "kind STRING, total BIGINT, numbers BIGINT, added BIGINT"
STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
STATE = "total BIGINT, numbers BIGINT"
RUN_TIMEOUT_S = 300


@dataclass(frozen=True)
class Spec:
    """One pipeline. ``name`` is the name of its output: a topic, the prefix of Redis keys, an HBase table."""

    name: str
    exactly_once: bool
    bootstrap_servers: str
    redis_url: str
    zookeeper: str
    checkpoint: str
    scratch: str
    batch: int


# -- the query: what a user would write --------------------------------------------------------------------------------


def running_sums(numbers: DataFrame) -> DataFrame:
    """One row for each kind in a batch: its total, how many numbers it has had, and what the batch added."""
    return (
        # One row for each kind: with several, PySpark 4.0.0 makes floats of their positions in the state; pyarrow 26 rejects it.
        numbers.coalesce(1)
        .mapInPandas(_sums_of_batch, "kind STRING, added BIGINT, numbers BIGINT")
        .groupBy("kind")
        .applyInPandasWithState(_add, COLUMNS, STATE, "update", "NoTimeout")
    )


def _sums_of_batch(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    import pandas as pd  # noqa: PLC0415 - in the worker

    numbers = pd.concat([batch["number"] for batch in batches])
    kinds = numbers.groupby(numbers.mod(2).map(dict(enumerate(KINDS))))
    yield kinds.agg(["sum", "count"]).set_axis(["added", "numbers"], axis=1).rename_axis("kind").reset_index()


def _add(key: tuple[str], batches: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    import pandas as pd  # noqa: PLC0415 - in the worker

    total, count = state.get if state.exists else (0, 0)
    [batch] = batches
    added, numbers = int(batch["added"].iloc[0]), int(batch["numbers"].iloc[0])
    state.update((total + added, count + numbers))
    yield pd.DataFrame({"kind": key, "total": [total + added], "numbers": [count + numbers], "added": [added]})


def write_exactly_once(sums: DataFrame, spec: Spec) -> Any:
    """Write to Kafka, Redis and HBase by one decision."""
    from integration.spark import exactly_once  # noqa: PLC0415 - only here
    from sinks.hbase import HBaseSink, Put  # noqa: PLC0415 - the same
    from sinks.kafka import KafkaSink  # noqa: PLC0415 - the same
    from sinks.redis import HashIncrBy, HashSet, RedisSink  # noqa: PLC0415 - the same

    name, url = spec.name, spec.redis_url
    events = KafkaSink(name=f"{name}-events", bootstrap_servers=spec.bootstrap_servers, topic=name)
    totals = RedisSink(name=f"{name}-totals", url=url, mapping=HashSet(f"{name}:total:{{kind}}", ("total", "numbers")))
    added = RedisSink(name=f"{name}-added", url=url, mapping=HashIncrBy(f"{name}:added:{{kind}}", ("added",)))
    mapping = Put(row="{kind}", cells={"d:total": "total", "d:numbers": "numbers"})
    rows = HBaseSink(name=f"{name}-rows", zookeeper=spec.zookeeper, table=name, mapping=mapping)
    select = {events.name: ["kind AS key", "to_json(struct(*)) AS value"]}
    each = exactly_once(events, totals, rows, added, checkpoint_location=spec.checkpoint, select=select)
    return sums.writeStream.outputMode("update").foreachBatch(each)


def write_as_usual(sums: DataFrame, spec: Spec) -> Any:
    """Write by the foreachBatch that guides show: at least once."""

    def write(batch: DataFrame, _: int) -> None:
        batch.persist()
        kafka = {"kafka.bootstrap.servers": spec.bootstrap_servers, "topic": spec.name}
        batch.selectExpr("kind AS key", "to_json(struct(*)) AS value").write.format("kafka").options(**kafka).save()
        with contextlib.closing(redis.Redis.from_url(spec.redis_url)) as client, hbase_table(spec) as table:
            for row in batch.collect():
                put = Put(row.kind.encode()).add_column(b"d", b"total", b"%d" % row.total)
                table.put(put.add_column(b"d", b"numbers", b"%d" % row.numbers))
                client.hset(f"{spec.name}:total:{row.kind}", mapping={"total": row.total, "numbers": row.numbers})
                client.hincrby(f"{spec.name}:added:{row.kind}", "added", row.added)
        batch.unpersist()

    return sums.writeStream.outputMode("update").foreachBatch(write)


def hbase_table(spec: Spec) -> Any:
    """The pipeline's table, by an ordinary HBase client."""
    return HBaseTable({"hbase.zookeeper.quorum": spec.zookeeper}, b"default", spec.name.encode())


def run_query(spec: Spec) -> None:
    """Process all numbers of the topic, then return."""
    spark = _session(spec)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", spec.bootstrap_servers)
    source = source.option("subscribe", SOURCE).option("startingOffsets", "earliest")
    numbers = (
        source.option("maxOffsetsPerTrigger", spec.batch)
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    )
    write = write_exactly_once if spec.exactly_once else write_as_usual
    writer = write(running_sums(numbers), spec).option("checkpointLocation", spec.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _session(spec: Spec) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    settings = {
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
        "spark.sql.streaming.stateStore.providerClass": f"{STATE_PACKAGE}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": spec.scratch,
        "spark.sql.warehouse.dir": f"{spec.scratch}/warehouse",
        "spark.driver.extraJavaOptions": f"{driver_flags()} -Djava.io.tmpdir={spec.scratch}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName(spec.name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


# -- around the query: services, kills, what readers see ------------------------------------------------------------------


def create_topic(bootstrap_servers: str, name: str, *, partitions: int) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # must live until it has answered
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result()


def make_outputs(spec: Spec) -> None:
    """Create the topic and the table."""
    create_topic(spec.bootstrap_servers, spec.name, partitions=1)
    master: Any = MasterConnection()  # type: ignore[no-untyped-call]
    master.connect(*locate_master([spec.zookeeper]))
    master.create_table(b"default", spec.name.encode(), [ColumnFamilyDescriptorBuilder(b"d").build()])


def feed(bootstrap_servers: str, numbers: int) -> dict[str, int]:
    """Fill the topic; returns the true sums."""
    create_topic(bootstrap_servers, SOURCE, partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 50})
    for number in range(1, numbers + 1):
        producer.produce(SOURCE, str(number), partition=number // 2 % 2)
        producer.poll(0)
    producer.flush()
    return {"even": sum(range(2, numbers + 1, 2)), "odd": sum(range(1, numbers + 1, 2))}


def seen(spec: Spec) -> dict[str, dict[str, int]]:
    """What readers of each sink see: kind -> sum, for the totals, the increments, and the events added up."""
    with contextlib.closing(redis.Redis.from_url(spec.redis_url)) as client:
        found = {
            "Redis, totals (upserts)": {
                kind: int(client.hget(f"{spec.name}:total:{kind}", "total") or 0) for kind in KINDS
            },
            "Redis, increments": {kind: int(client.hget(f"{spec.name}:added:{kind}", "added") or 0) for kind in KINDS},
        }
    with hbase_table(spec) as table:
        rows = {kind: table.get(Get(kind.encode())) for kind in KINDS}
    found["HBase, totals (upserts)"] = {kind: int(row.get(b"d", b"total") or 0) for kind, row in rows.items()}
    events = dict.fromkeys(KINDS, 0)
    for event in read(spec):
        events[event["kind"]] += event["added"]
    return {**found, "Kafka, events added up": events}


def read(spec: Spec) -> Iterator[Any]:
    """Every committed event."""
    position = {"group.id": "reader", "enable.partition.eof": True, "enable.auto.commit": False}
    committed = {"bootstrap.servers": spec.bootstrap_servers, "isolation.level": "read_committed"}
    consumer = Consumer({**committed, **position})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(spec.name, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            yield json.loads(message.value() or b"")


def play(spec: Spec, kills: int, chance: random.Random, console: Console) -> None:
    """Run the query until it has processed all numbers; kill it on the way, when its output has just moved."""
    make_outputs(spec)
    environment = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ.update(environment)
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
    """Wait until it ends, or until Redis has changed so often; then kill it at once."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    with contextlib.closing(redis.Redis.from_url(spec.redis_url)) as client:
        before = client.hgetall(f"{spec.name}:added:odd")
        while processes.exit_code is None and time.monotonic() < deadline:
            now = client.hgetall(f"{spec.name}:added:odd")
            moves -= now != before
            if moves == 0 and now != before:
                processes.kill()
                return True
            before = now
            time.sleep(0.002)
    return False


def main(
    numbers: Annotated[int, typer.Option(min=100, help="How many integers.")] = 6000,
    kills: Annotated[int, typer.Option(min=0, help="How often each pipeline is killed.")] = 3,
    seed: Annotated[int | None, typer.Option(help="What the kills are drawn from.")] = None,
    skip_usual: Annotated[bool, typer.Option("--skip-usual", help="Only this toolkit's sinks.")] = False,  # noqa: FBT002
) -> None:
    """Run it and print what readers see. Exit status 1 if this toolkit's sums are not exactly right."""
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
        for name in ("exactly-once", "as-usual")[: 1 if skip_usual else 2]:
            scratch = Path(directory) / name
            scratch.mkdir()
            spec = Spec(
                name=name,
                exactly_once=name == "exactly-once",
                bootstrap_servers=kafka.bootstrap_servers,
                redis_url=server.url,
                zookeeper=hbase.zookeeper,
                checkpoint=str(scratch / "checkpoint"),
                scratch=str(scratch),
                batch=max(1, numbers // (4 * (kills + 1))),
            )
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
