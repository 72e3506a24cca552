"""Publish a query's progress as consumer-group offsets for its Kafka source.

Lag tools and autoscalers can then see the progress. The query writes the offsets after a batch is visible, and never reads
them, because Spark's checkpoint remains the source of truth. The query does not wait for the write. If the write fails,
the query continues. Tools then see too large a lag until the next batch.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from twopc.errors import ConfigurationError
from twopc.integration.spark.checkpoint import offsets_by_source
from twopc.integration.spark.hadoop_files import open_files
from twopc.integration.spark.interceptors import Interceptor
from twopc.integration.verify.sources import kafka_ends
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from twopc.integration.spark.interceptors import InterceptedBatch
    from twopc.integration.spark.several import Frames

logger = logging.getLogger(__name__)


class SourceProgress(Interceptor):
    """Commit the source's offsets to a consumer group after each batch: ``interceptors=[SourceProgress(…)]``.

    Args:
        bootstrap_servers: the brokers of the cluster that the query reads from.
        group: a consumer group without members, used only for this purpose. Other groups, such as Spark's own, stay unchanged.
        options: connection options with the prefix ``kafka.``, as for a sink.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(self, *, bootstrap_servers: str, group: str, options: Mapping[str, Any] | None = None) -> None:
        if not group:
            raise ConfigurationError(
                "SourceProgress(group=''): the name is empty. Pass the name of a group that no consumer uses"
            )
        source = KafkaSink(name="progress", bootstrap_servers=bootstrap_servers, options=options or {})
        self._admin = AdminClient(source.connection_config())
        self._group = group
        self._sent: Future[Any] | None = None

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        """See :class:`Interceptor`.

        Raises:
            TwoPhaseCommitError: the batch failed. If the batch succeeds but the progress cannot be published, a warning is
                logged.
        """
        proceed(batch.frames)  # ``proceed`` returns when the batch is visible
        with self._warning_of(f"the batch before batch {batch.batch_id}"):
            self._look_back()
        with self._warning_of(f"batch {batch.batch_id}"):
            files = open_files(batch.context, batch.checkpoint_location)
            ends = kafka_offsets(offsets_by_source(files, batch.batch_id) or {})
            if ends:
                request = [ConsumerGroupTopicPartitions(self._group, ends)]
                self._sent = self._admin.alter_consumer_group_offsets(request)[self._group]

    @contextlib.contextmanager
    def _warning_of(self, what: str) -> Iterator[None]:
        """Log an error as a warning."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the batch is visible, so an error must not make it fail
            logger.warning(
                "the consumer group %s does not show the progress of %s. The next batch will update it. No data is at risk. "
                "Cause: %s",
                self._group,
                what,
                error,
            )

    def _look_back(self) -> None:
        """Wait for the previous request, so that the next request cannot overtake it.

        The previous request has had an entire batch's time to finish.

        Raises:
            KafkaException: the previous request failed.
        """
        sent, self._sent = self._sent, None
        if sent is not None:
            for where in sent.result().topic_partitions:
                if where.error is not None:
                    raise KafkaException(where.error)


def kafka_offsets(by_source: Mapping[str, str]) -> list[TopicPartition]:
    """For each Kafka partition, find the end offset of a batch.

    Skip other sources, because their offsets have different formats. If a query reads a topic twice, as in a self-join, use
    the smaller offset. The client rejects a request that contains a partition twice.
    """
    found: dict[tuple[str, int], int] = {}
    for text in by_source.values():
        for where, offset in (kafka_ends(text) or {}).items():
            found[where] = min(offset, found.get(where, offset))
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in found.items()]
