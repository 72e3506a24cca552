"""Ask about topics, and ask the leaders of partitions which transactions are open there.

A coordinator knows to which partitions a producer wanted to write, but it does not know what the partitions contain now.
Like ``twopc.sinks.kafka.transactions``, this module sends each request once.

Source: KIP-664 (DescribeProducers), KIP-516 (topic ids).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.metadata import MetadataRequest

from twopc.sinks.kafka.reports import NO_ANSWER, NONE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from twopc.sinks.kafka.broker_connection import BrokerConnection

UNKNOWN_TOPIC: Final = kafka_errors.UnknownTopicOrPartitionError.__name__
NOT_ALLOWED: Final = kafka_errors.TopicAuthorizationFailedError.__name__
NOT_SUPPORTED: Final = kafka_errors.UnsupportedVersionError.__name__
#: The first version of Metadata that can ask about a topic without creating it.
_WITHOUT_CREATION: Final = 4
#: A new topic or a new leader causes these errors for a moment, so they say nothing about what a partition contains.
_PASSING: Final = frozenset(
    {
        kafka_errors.NotLeaderForPartitionError.errno,
        kafka_errors.LeaderNotAvailableError.errno,
        kafka_errors.UnknownTopicOrPartitionError.errno,
        kafka_errors.KafkaStorageError.errno,
    }
)


@dataclass(frozen=True)
class TopicReport:
    """A broker's report on a topic.

    Attributes:
        error: ``NONE``, ``NO_ANSWER`` or kafka-python's name for the error.
        topic_id: changes when the topic is recreated; empty if the brokers have no topic ids.
        leaders: the node of each partition that has a leader.
    """

    error: str
    topic_id: str = ""
    leaders: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionReport:
    """A leader's report on a partition.

    Attributes:
        error: as in :class:`TopicReport`.
        writers: the producer ids and epochs of the transactions that are open in the partition.
    """

    error: str
    writers: frozenset[tuple[int, int]] = frozenset()


def split(partition: str) -> tuple[str, int]:
    """Split ``topic:partition``."""
    topic, _, number = partition.rpartition(":")
    return topic, int(number)


def describe_topics(connection: BrokerConnection, topics: Collection[str]) -> dict[str, TopicReport]:
    """Describe topics with one request. It does not create a missing topic."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)],
        allow_auto_topic_creation=False,
        min_version=_WITHOUT_CREATION,
    )
    [response] = connection.send_all([(request,)])
    rows = [] if isinstance(response, Exception) else response.topics
    return dict.fromkeys(topics, TopicReport(NO_ANSWER)) | {row.name: _topic(row) for row in rows}


def _topic(row: Any) -> TopicReport:
    if row.error_code:
        is_unknown = row.error_code == kafka_errors.UnknownTopicOrPartitionError.errno
        return TopicReport(UNKNOWN_TOPIC if is_unknown else _error_name(row.error_code))
    found = row.topic_id
    return TopicReport(
        NONE,
        str(found) if found is not None and found.int else "",
        {one.partition_index: one.leader_id for one in row.partitions if one.leader_id >= 0},
    )


def describe_partitions(connection: BrokerConnection, leaders: Mapping[str, int]) -> dict[str, PartitionReport]:
    """Ask each partition's leader, with one request per node.

    Some brokers that are not Apache Kafka do not support this request. Then the error is :data:`NOT_SUPPORTED`.

    Args:
        connection: the connection to the brokers.
        leaders: the leader of each partition, as ``topic:partition``.
    """
    if connection.does_not_know(DescribeProducersRequest):
        return dict.fromkeys(leaders, PartitionReport(NOT_SUPPORTED))
    return dict.fromkeys(leaders, PartitionReport(NO_ANSWER)) | {
        partition: _partition(row) for partition, row in producers_by_partition(connection, leaders).items()
    }


def producers_by_partition(connection: BrokerConnection, leaders: Mapping[str, int]) -> dict[str, Any]:
    """Return the rows of the DescribeProducers responses. Omit partitions whose leader does not respond."""
    by_node: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for partition, node in leaders.items():
        topic, number = split(partition)
        by_node[node][topic].append(number)
    responses = connection.send_all([(_producers(topics), node) for node, topics in by_node.items()])
    answered = [response for response in responses if not isinstance(response, Exception)]
    return {
        f"{topic.name}:{row.partition_index}": row
        for response in answered
        for topic in response.topics
        for row in topic.partitions
    }


def open_producers(row: Any) -> list[Any]:
    """Return the producers in a DescribeProducers row whose transactions are open in the partition."""
    return [one for one in row.active_producers if one.current_txn_start_offset >= 0]


def error_of(row: Any) -> str:
    """Return the error of a DescribeProducers row: ``NONE``, ``NO_ANSWER`` or kafka-python's name for the error."""
    return _error_name(row.error_code) if row.error_code else NONE


def _producers(topics: Mapping[str, list[int]]) -> DescribeProducersRequest:
    rows = [DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=rows) for topic, rows in topics.items()]
    return DescribeProducersRequest(topics=rows)


def _partition(row: Any) -> PartitionReport:
    if (error := error_of(row)) != NONE:
        return PartitionReport(error)
    return PartitionReport(
        NONE,
        frozenset((one.producer_id, one.producer_epoch) for one in open_producers(row)),
    )


def _error_name(code: int) -> str:
    return NO_ANSWER if code in _PASSING else str(kafka_errors.for_code(code).__name__)
