"""Compare one decision for Kafka and PostgreSQL with an ordinary foreachBatch: which orders does a killed query duplicate?

Orders come from files. Each batch goes to a PostgreSQL table and to a Kafka topic. One query writes to both under one decision.
The other query uses Spark's `jdbc` writer and then Spark's Kafka writer, as in many guides. The example kills both queries
(SIGKILL: driver, JVM, workers) at similar moments, and restarts them until all orders are processed. Then ordinary clients
read the outputs and count the orders.

    python examples/kafka_and_postgres.py                # 4000 orders, 4 kills of each query
    python examples/kafka_and_postgres.py --kills 8 --seed 7
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import typer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from rich.console import Console
from rich.table import Table

from twopc import KafkaSink, PostgresSink, exactly_once
from twopc.integration.services.jars import postgres_jdbc_jars, spark_kafka_jars
from twopc.integration.services.kafka import LocalKafka
from twopc.integration.services.postgres import LocalPostgres
from twopc.testing.kill_loop import kill_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Query = Callable[[DataFrame, str], DataStreamWriter]


@dataclass(frozen=True)
class Spec:
    """Describes one pipeline. ``name`` is the name of both its table and its topic."""

    name: str
    bootstrap_servers: str
    dsn: str


# -- the queries, as a user would write them ---------------------------------------------------------------------------


def one_decision(spec: Spec) -> Query:
    """Write to both outputs with one decision. All rows of a batch become visible in the table together."""

    def query(orders: DataFrame, _: str) -> DataStreamWriter:
        table = PostgresSink(name=f"{spec.name}-table", dsn=spec.dsn, table=spec.name)
        events = KafkaSink(name=f"{spec.name}-events", bootstrap_servers=spec.bootstrap_servers, topic=spec.name)
        select = {table.name: ["number", "key AS customer"], events.name: ["key", "value"]}
        return orders.writeStream.foreachBatch(exactly_once(table, events, select=select))

    return query


def as_usual(spec: Spec) -> Query:
    """Write to one output after the other, at least once."""
    found = conninfo_to_dict(spec.dsn)
    jdbc = {
        "url": "jdbc:postgresql://{host}:{port}/{dbname}".format(**found),
        "user": str(found["user"]),
        "password": str(found["password"]),
        "driver": "org.postgresql.Driver",
        "dbtable": f'"{spec.name}"',
    }
    kafka = {"kafka.bootstrap.servers": spec.bootstrap_servers, "topic": spec.name}

    def query(orders: DataFrame, _: str) -> DataStreamWriter:
        def write(batch: DataFrame, _: int) -> None:
            batch.persist()
            batch.selectExpr("number", "key AS customer").write.format("jdbc").options(**jdbc).mode("append").save()
            batch.select("key", "value").write.format("kafka").options(**kafka).save()
            batch.unpersist()

        return orders.writeStream.foreachBatch(write)

    return query


WAYS = {"one-decision": one_decision, "as-usual": as_usual}


# -- around the queries: services, kills, readers -------------------------------------------------------------------------


def make_outputs(spec: Spec) -> None:
    """Create the table and the topic."""
    with psycopg.connect(spec.dsn, autocommit=True) as connection:
        columns = sql.SQL("CREATE TABLE {} (number bigint NOT NULL, customer text, at timestamptz DEFAULT now())")
        connection.execute(columns.format(sql.Identifier(spec.name)))
    admin = AdminClient({"bootstrap.servers": spec.bootstrap_servers})  # the client must outlive the request
    admin.create_topics([NewTopic(spec.name, 1, 1)])[spec.name].result()


def in_table(spec: Spec) -> list[int]:
    """Read the number of every order in the table."""
    with psycopg.connect(spec.dsn) as connection:
        found = connection.execute(sql.SQL("SELECT number FROM {}").format(sql.Identifier(spec.name)))
        return [number for (number,) in found]


def in_topic(spec: Spec) -> Iterator[int]:
    """Read the number of every committed order in the topic."""
    settings = {"bootstrap.servers": spec.bootstrap_servers, "group.id": "reader", "isolation.level": "read_committed"}
    with contextlib.closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(spec.name, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            yield int(message.value() or b"")


@dataclass(frozen=True)
class Found:
    """Counts of the orders that a reader sees in one output."""

    rows: int
    lost: int
    duplicated: int

    @classmethod
    def of(cls, numbers: list[int], orders: int) -> Found:
        """Count the orders, and how many of them are lost or duplicated."""
        times = Counter(numbers)
        return cls(len(numbers), sum(number not in times for number in range(orders)), len(numbers) - len(times))


def play(spec: Spec, orders: int, kills: int, seed: int, directory: Path) -> tuple[dict[str, Found], tuple[str, ...]]:
    """Run one query until all orders are processed, and kill it several times. Return each output's counts, and the kills."""
    make_outputs(spec)
    jars = [*spark_kafka_jars(), *postgres_jdbc_jars()]
    outcome = kill_loop(
        lambda: in_table(spec),
        query=WAYS[spec.name](spec),
        directory=directory,
        rows=orders,
        kills=kills,
        seed=seed,
        spark={"spark.jars": ",".join(map(str, jars))},
    )
    found = {"PostgreSQL": in_table(spec), "Kafka": list(in_topic(spec))}
    return {store: Found.of(numbers, orders) for store, numbers in found.items()}, outcome.kills


def main(
    orders: Annotated[int, typer.Option(min=100, help="The number of orders to write.")] = 4000,
    kills: Annotated[int, typer.Option(min=1, help="The number of times to kill each query.")] = 4,
    seed: Annotated[int | None, typer.Option(help="The random seed that decides when each query is killed.")] = None,
) -> None:
    """Run both queries and count the orders that readers see. Exit with status 1 if one decision was not exactly-once."""
    console = Console(highlight=False)
    seed = random.randrange(10**6) if seed is None else seed
    console.print(f"Kafka and PostgreSQL: {orders} orders, {kills} kills of each query, seed {seed}")
    found: dict[str, dict[str, Found]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="twopc-orders-", ignore_cleanup_errors=True) as directory,
        LocalKafka() as kafka,
        LocalPostgres() as postgres,
    ):
        for name in WAYS:
            spec = Spec(name, kafka.bootstrap_servers, postgres.dsn)
            found[name], struck = play(spec, orders, kills, seed, Path(directory) / name)
            console.print(f"{name}: killed {', '.join(struck)}")
    _show(found, orders, console)
    if any((one.lost, one.duplicated) != (0, 0) for one in found["one-decision"].values()):
        raise typer.Exit(1)


def _show(found: dict[str, dict[str, Found]], orders: int, console: Console) -> None:
    table = Table("query", "what a reader sees in", "orders", "lost", "duplicated", title=f"{orders:,} orders")
    for name, stores in found.items():
        for store, one in stores.items():
            table.add_row(name, store, f"{one.rows:,}", *(_count(number) for number in (one.lost, one.duplicated)))
    console.print(table)


def _count(number: int) -> Any:
    return f"[red]{number:,}[/]" if number else "0"


if __name__ == "__main__":
    typer.run(main)
