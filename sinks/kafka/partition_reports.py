"""Ask about topics, and ask the leaders of partitions which transactions are open there.

A coordinator knows which partitions a producer wanted to write to, but it does not know what the partitions contain now.
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
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from twopc.sinks.kafka.broker_connection import BrokerConnection

    #: Sends requests, each about some topics, ids or partitions, and returns their outcomes.
    Send = Callable[[Sequence[tuple[Any, ...]], Sequence[Collection[str]]], Sequence[Any]]

UNKNOWN_TOPIC: Final = kafka_errors.UnknownTopicOrPartitionError.__name__
NOT_ALLOWED: Final = kafka_errors.TopicAuthorizationFailedError.__name__
NOT_SUPPORTED: Final = kafka_errors.UnsupportedVersionError.__name__
#: The first version of Metadata that can ask about a topic without creating it.
_WITHOUT_CREATION: Final = 4
#: How many partitions one request asks about. A leader lists every producer that has written to a partition in the last day. If
#: 16 tasks write a batch each minute, the list takes up to 0.7 MB for each partition. kafka-python closes the connection at 100
#: MB.
_ASKED_AT_ONCE: Final = 10
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
        leaders: the leader's node for each partition of the topic; None while the partition has no leader.
    """

    error: str
    topic_id: str = ""
    leaders: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PartitionReport:
    """A leader's report on a partition.

    Attributes:
        error: as in :class:`TopicReport`.
        writers: the producer ids and epochs of the transactions that are open in the partition, with the offset at which
            each of these transactions begins there.
    """

    error: str
    writers: Mapping[tuple[int, int], int] = field(default_factory=dict)


def split(partition: str) -> tuple[str, int]:
    """Split ``topic:partition``."""
    topic, _, number = partition.rpartition(":")
    return topic, int(number)


def describe_topics(
    connection: BrokerConnection, topics: Collection[str], *, send: Send | None = None
) -> dict[str, TopicReport]:
    """Describe topics with one request. The request does not create a missing topic."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)],
        allow_auto_topic_creation=False,
        min_version=_WITHOUT_CREATION,
    )
    [response] = (send or _without_notes(connection))([(request,)], [()])
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
        {one.partition_index: one.leader_id if one.leader_id >= 0 else None for one in row.partitions},
    )


def describe_partitions(
    connection: BrokerConnection, leaders: Mapping[str, int], *, send: Send | None = None
) -> dict[str, PartitionReport]:
    """Ask each partition's leader, a few partitions at a time. If a leader does not respond, it is not asked again.

    Some brokers that are not Apache Kafka do not support this request. Then the error is :data:`NOT_SUPPORTED`.

    Args:
        connection: the connection to the brokers.
        leaders: the leader of each partition, as ``topic:partition``.
        send: sends the requests in place of the connection.
    """
    if connection.does_not_know(DescribeProducersRequest):
        return dict.fromkeys(leaders, PartitionReport(NOT_SUPPORTED))
    found = dict.fromkeys(leaders, PartitionReport(NO_ANSWER))
    waiting, send = _by_node(leaders), send or _without_notes(connection)
    while waiting:
        requests = [(_producers(partitions[:_ASKED_AT_ONCE]), node) for node, partitions in waiting.items()]
        responses = dict(zip(waiting, send(requests, list(waiting.values())), strict=True))
        answered = {node: one for node, one in responses.items() if not isinstance(one, Exception)}
        for response in answered.values():
            found |= _reports(response)
        waiting = {node: rest for node in answered if (rest := waiting[node][_ASKED_AT_ONCE:])}
    return found


def _without_notes(connection: BrokerConnection) -> Send:
    return lambda requests, _: connection.send_all(requests)


def _by_node(leaders: Mapping[str, int]) -> dict[int, list[str]]:
    by_node: dict[int, list[str]] = defaultdict(list)
    for partition, node in leaders.items():
        by_node[node].append(partition)
    return dict(by_node)


def _producers(partitions: Iterable[str]) -> DescribeProducersRequest:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in map(split, partitions):
        by_topic[topic].append(number)
    rows = [
        DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=rows) for topic, rows in by_topic.items()
    ]
    return DescribeProducersRequest(topics=rows)


def _reports(response: Any) -> dict[str, PartitionReport]:
    return {
        f"{topic.name}:{row.partition_index}": _partition(row) for topic in response.topics for row in topic.partitions
    }


def _partition(row: Any) -> PartitionReport:
    if row.error_code:
        return PartitionReport(_error_name(row.error_code))
    return PartitionReport(
        NONE,
        {
            (one.producer_id, one.producer_epoch): one.current_txn_start_offset
            for one in row.active_producers
            if one.current_txn_start_offset >= 0
        },
    )


def _error_name(code: int) -> str:
    return NO_ANSWER if code in _PASSING else str(kafka_errors.for_code(code).__name__)
