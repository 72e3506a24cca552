"""Publish a query's progress as consumer-group offsets of its Kafka source, for lag tools and autoscalers.

The offsets are written after a batch is visible and never read back: Spark's checkpoint stays the truth. Nothing waits for
them, and a failure stops no query: the lag that others see is then too high until the next batch.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from twopc.errors import ConfigurationError, TwoPhaseCommitError
from twopc.integration.spark.checkpoint import offsets_by_source
from twopc.integration.spark.hadoop_files import open_files
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)


def with_progress(
    function: Callable[[DataFrame, int], object],
    *,
    checkpoint_location: str,
    bootstrap_servers: str,
    group: str,
    options: Mapping[str, Any] | None = None,
) -> WithProgress:
    """Make the callable for ``foreachBatch`` that commits the source's offsets to a consumer group after each batch.

    Args:
        function: the function that writes: ``exactly_once(…)``.
        checkpoint_location: the query's checkpoint.
        bootstrap_servers: the brokers of the cluster that the query reads.
        group: a consumer group of its own, without members: Spark's own groups and those of others are not touched.
        options: connection options with the prefix ``kafka.``, as for a sink.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    if not group:
        raise ConfigurationError("with_progress(group='') names no consumer group: name one that no consumer uses")
    source = KafkaSink(name="progress", bootstrap_servers=bootstrap_servers, options=options or {})
    return WithProgress(function, checkpoint_location, AdminClient(source.connection_config()), group)


class WithProgress:
    """Spark calls it with each batch."""

    def __init__(
        self, function: Callable[[DataFrame, int], object], checkpoint_location: str, admin: AdminClient, group: str
    ) -> None:
        self._function = function
        self._location = checkpoint_location
        self._admin = admin
        self._group = group
        self._sent: Future[Any] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a batch, then its progress.

        Raises:
            TwoPhaseCommitError: the function failed. A failure of the progress is logged.
        """
        self._function(frame, batch_id)  # it returns when the batch is visible
        try:
            self._look_back()
            files = open_files(frame.sparkSession.sparkContext, self._location)
            ends = kafka_offsets(offsets_by_source(files, batch_id) or {})
            if ends:
                request = [ConsumerGroupTopicPartitions(self._group, ends)]
                self._sent = self._admin.alter_consumer_group_offsets(request)[self._group]
        except (KafkaException, TwoPhaseCommitError) as error:
            logger.warning(
                "the consumer group %s does not show batch %d yet. No data is at risk: %s", self._group, batch_id, error
            )

    def _look_back(self) -> None:
        """Wait for the previous request, which has had a whole batch's time: a later one must not overtake it.

        Raises:
            KafkaException: that request failed.
        """
        sent, self._sent = self._sent, None
        if sent is not None:
            for where in sent.result().topic_partitions:
                if where.error is not None:
                    raise KafkaException(where.error)


def kafka_offsets(by_source: Mapping[str, str]) -> list[TopicPartition]:
    """Find the end offsets of a batch in its Kafka sources. Other sources have offsets of other forms and are left out."""
    found = []
    for text in by_source.values():
        try:
            topics = json.loads(text)
        except ValueError:
            continue
        if not isinstance(topics, dict) or not all(isinstance(ends, dict) for ends in topics.values()):
            continue
        found += [
            TopicPartition(topic, int(partition), int(offset))
            for topic, ends in topics.items()
            for partition, offset in ends.items()
            if partition.isdigit() and isinstance(offset, int)
        ]
    return found
