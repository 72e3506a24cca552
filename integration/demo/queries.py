"""The two queries that the demo kills, from Kafka to Kafka: with this toolkit, and with Spark's own sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Query = Callable[[DataFrame, str], DataStreamWriter]


def with_twopc(bootstrap_servers: str, topic: str, shuffle: int) -> Query:
    """Write through this toolkit; see :func:`with_spark`."""

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        from twopc.integration.spark import exactly_once  # noqa: PLC0415 - in the query's own process
        from twopc.sinks.kafka import KafkaSink  # noqa: PLC0415 - the same

        sink = KafkaSink(name="demo", bootstrap_servers=bootstrap_servers, topic=topic)
        rows = _shuffled(frame, shuffle)
        return rows.writeStream.foreachBatch(exactly_once(sink, checkpoint_location=checkpoint))

    return query


def with_spark(bootstrap_servers: str, topic: str, shuffle: int) -> Query:
    """Write through Spark's own Kafka sink.

    Args:
        bootstrap_servers: the broker.
        topic: the output topic.
        shuffle: the number of tasks to repartition into by key; 0 for no shuffle.
    """

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        writer = _shuffled(frame, shuffle).writeStream.format("kafka")
        return writer.option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)

    return query


def _shuffled(frame: DataFrame, tasks: int) -> DataFrame:
    rows = frame.select("key", "value")
    return rows.repartition(tasks, "key") if tasks else rows
