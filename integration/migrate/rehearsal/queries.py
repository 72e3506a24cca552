"""Define a rehearsal's queries, which share one checkpoint. Each query runs in its own process, so it has its own imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc import AdoptQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Query = Callable[[DataFrame, str], DataStreamWriter]


def old_query(servers: str, topic: str) -> Query:
    """Build the original query, which writes at least once."""

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        from twopc.sinks.kafka_legacy import AtLeastOnceKafkaSink  # noqa: PLC0415 - imported in the query's process

        sink = AtLeastOnceKafkaSink(bootstrap_servers=servers, topic=topic)
        return frame.select("key", "value").writeStream.foreachBatch(sink)

    return query


def new_query(servers: str, topic: str, name: str, query_id: str) -> Query:
    """Build the query with the transactional sink behind ``TakeOver``."""

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        from twopc.integration.migrate import TakeOver  # noqa: PLC0415 - imported in the query's process
        from twopc.integration.spark import exactly_once  # noqa: PLC0415 - imported in the query's process
        from twopc.sinks.kafka import KafkaSink  # noqa: PLC0415 - imported in the query's process

        sink = KafkaSink(name=name, bootstrap_servers=servers, topic=topic)
        each = exactly_once(sink, interceptors=[TakeOver(sink)], override=AdoptQuery(query_id))
        return frame.select("key", "value").writeStream.foreachBatch(each)

    return query


def way_back(servers: str, topic: str, name: str) -> Query:
    """Build the original query, with ``TakeOver`` in front of its sink."""

    def query(frame: DataFrame, _: str) -> DataStreamWriter:
        from twopc.integration.migrate import TakeOver  # noqa: PLC0415 - imported in the query's process
        from twopc.integration.spark import intercepted  # noqa: PLC0415 - imported in the query's process
        from twopc.sinks.kafka import KafkaSink  # noqa: PLC0415 - imported in the query's process
        from twopc.sinks.kafka_legacy import AtLeastOnceKafkaSink  # noqa: PLC0415 - imported in the query's process

        old = AtLeastOnceKafkaSink(bootstrap_servers=servers, topic=topic)
        sink = KafkaSink(name=name, bootstrap_servers=servers, topic=topic)
        return frame.select("key", "value").writeStream.foreachBatch(intercepted(old, TakeOver(sink)))

    return query
