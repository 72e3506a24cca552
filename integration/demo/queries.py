"""Build the queries that the demo kills.

Each query copies records from Kafka to one or more stores, either with this toolkit or in the way that Spark's guides show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from twopc.integration.demo.stores.kafka import KafkaOutput
    from twopc.integration.demo.stores.store import Output

    Query = Callable[[DataFrame, str], DataStreamWriter]


def with_twopc(outputs: Sequence[Output], shuffle: int) -> Query:
    """Write to all outputs in one decision, with this toolkit.

    Args:
        outputs: one or more outputs.
        shuffle: the number of partitions in a shuffle by key; 0 for no shuffle.
    """

    def query(frame: DataFrame, checkpoint: str) -> DataStreamWriter:
        from twopc import CheckpointConfig  # noqa: PLC0415 - imported in the query's process
        from twopc.integration.spark import exactly_once  # noqa: PLC0415 - imported in the query's process

        sinks = [(output, output.sink()) for output in outputs]
        select = {sink.name: list(output.columns) for output, sink in sinks}
        # Only Spark Connect requires this setting. The setting is safe for a shuffle by key, because a task that runs
        # again receives the same rows.
        checkpoints = CheckpointConfig(deterministic_plan=bool(shuffle))
        each = exactly_once(
            *(sink for _, sink in sinks), checkpoint_location=checkpoint, checkpoints=checkpoints, select=select
        )
        return _shuffled(frame, shuffle).writeStream.foreachBatch(each)

    return query


def with_spark(output: KafkaOutput, shuffle: int) -> Query:
    """Write through Spark's own Kafka sink; see :func:`with_twopc`."""

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        writer = _shuffled(frame, shuffle).writeStream.format("kafka")
        return writer.option("kafka.bootstrap.servers", output.bootstrap_servers).option("topic", output.topic)

    return query


def as_guides_show(outputs: Sequence[Output], shuffle: int) -> Query:
    """Write to one output after another with Spark's own writers; see :func:`with_twopc`."""

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        def write(batch: DataFrame, _: int) -> None:
            batch.persist()
            for output in outputs:
                output.append(batch)
            batch.unpersist()

        return _shuffled(frame, shuffle).writeStream.foreachBatch(write)

    return query


def _shuffled(frame: DataFrame, tasks: int) -> DataFrame:
    rows = frame.select("key", "value")
    return rows.repartition(tasks, "key") if tasks else rows
