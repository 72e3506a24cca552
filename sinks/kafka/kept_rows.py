"""Find open transactions whose partitions have lost their rows (rule 3).

A coordinator does not know what the partitions contain, or whether they still exist. If an output topic is recreated, or if
an operator aborts a transaction in one partition (``kafka-transactions.sh abort``), the coordinator still reports the
transaction as open, and EndTxn still returns NONE. The rows would be missing, and nothing would report the loss.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twopc.sinks.kafka.handle import all_partitions
from twopc.sinks.kafka.partition_reports import (
    NOT_ALLOWED,
    NOT_SUPPORTED,
    UNKNOWN_TOPIC,
    PartitionReport,
    TopicReport,
    split,
)
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, NOT_FINAL, described, until_final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.reports import Description
    from twopc.sinks.kafka.transactions import TransactionClient

logger = logging.getLogger(__name__)

_RECREATED: Final = (
    "the topic {0} was deleted and created again since the last batch, so the new topic may lack some of these rows. Stop the "
    "query before you recreate its output topic"
)
_DELETED: Final = "the topic {0} was deleted after these rows were written. Create the topic again"
_FEWER_PARTITIONS: Final = (
    "the partition {0} no longer exists, because its topic was deleted and created again with fewer partitions. Stop the query "
    "before you recreate its output topic"
)
_NOT_OPEN: Final = (
    "the partition {0} no longer contains these rows. Either its topic was deleted and created again, or somebody aborted "
    "the transaction in this partition (kafka-transactions.sh abort)"
)

#: What to do if a leader refuses to say which transactions are open.
_REMEDIES: Final = {
    NOT_ALLOWED: "Allow Read on the topic",
    NOT_SUPPORTED: "These brokers do not support DescribeProducers, so never abort a transaction in single partitions",
}


class KeptRows:
    """Compares the partitions with the transactions of one sink.

    A missing permission does not prove a loss, and neither does a broker that does not respond. In both cases, the driver
    skips the check and logs a warning.

    Args:
        client: the client for the sink's transactions.
        timeout_ms: how long to wait for the brokers.
    """

    def __init__(self, client: TransactionClient, *, timeout_ms: float) -> None:
        self._client = client
        self._timeout_ms = timeout_ms
        self._topic_ids: dict[str, str] = {}
        self._refused: set[str] = set()  # the topics that a warning has named

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the topics' ids before an attempt writes to them. Only topics that are not known yet need a request."""
        if unknown := set(topics) - self._topic_ids.keys():
            self._remember(self._client.topics(unknown))
        return {topic: self._topic_ids[topic] for topic in topics if topic in self._topic_ids}

    def recreated(self, handles: Sequence[KafkaHandle]) -> dict[KafkaHandle, str]:
        """Say why rows are missing, if a topic was recreated since this object first saw it. Costs one request.

        If an attempt wrote to both the old and the new topic, its transaction is open in both. Only the topic's id shows the
        change.
        """
        before = dict(self._topic_ids)
        wanted = all_partitions(handles)
        topics = self._describe(wanted)
        self._remember(topics)  # so that the next attempt can succeed
        lost = {where: why for where in wanted if (why := _loss(where, topics, before))}
        return _missing(handles, lambda where, _: lost.get(where)) if lost else {}

    def absent(self, handles: Sequence[KafkaHandle], topic_ids: Mapping[str, str]) -> dict[KafkaHandle, str]:
        """Say why rows are missing, if a transaction is not open in one of its partitions. Costs a request to each leader.

        The result also includes transactions that have ended.

        Args:
            handles: complete transactions, which another process may have confirmed.
            topic_ids: the topics' ids before the rows were written. Without permission to ask the leaders, compare these ids.
        """
        wanted = all_partitions(handles)
        partitions, topics = self._ask_leaders(wanted, self._describe(wanted))

        def why(where: str, handle: KafkaHandle) -> str | None:
            report = partitions[where]
            if report.error != NONE:
                return _loss(where, topics, topic_ids)
            is_open = (handle.producer_id, handle.producer_epoch) in report.writers
            return None if is_open else _NOT_OPEN.format(where)

        return _missing(handles, why)

    def _describe(self, partitions: Collection[str]) -> dict[str, TopicReport]:
        found: dict[str, TopicReport] = {}

        def ask(names: Sequence[str]) -> dict[str, str]:
            found.update(self._client.topics(names))
            # A broker that lags does not know a new topic or partition yet, so only the last such report counts.
            unknown = {split(where)[0] for where in partitions if _is_gone(where, found)}
            return {name: NO_ANSWER if name in unknown else found[name].error for name in names}

        until_final({split(where)[0] for where in partitions}, ask, timeout_ms=self._timeout_ms)
        _warn_of_silence(topic for topic, report in found.items() if report.error == NO_ANSWER)
        return found

    def _ask_leaders(
        self, partitions: Collection[str], topics: Mapping[str, TopicReport]
    ) -> tuple[dict[str, PartitionReport], dict[str, TopicReport]]:
        """Return the leaders' reports, and the newest reports on the topics, because a partition without a report may be gone."""
        found = {where: PartitionReport(NO_ANSWER) for where in partitions}
        described = dict(topics)
        existing = [where for where in partitions if not _is_gone(where, topics)]

        def leader(where: str) -> int | None:
            topic, number = split(where)
            return described[topic].leaders.get(number)

        def ask(wanted: Sequence[str]) -> dict[str, str]:
            known = {where: node for where in wanted if (node := leader(where)) is not None}
            found.update(self._client.partitions(known))
            unanswered = {split(where)[0] for where in wanted if found[where].error == NO_ANSWER}
            if unanswered:  # the leaders may have moved
                newer = self._client.topics(unanswered)
                described.update({topic: report for topic, report in newer.items() if report.error != NO_ANSWER})
            return {where: found[where].error for where in wanted}

        until_final(existing, ask, timeout_ms=self._timeout_ms)
        for error, remedy in _REMEDIES.items():
            self._warn_of_refusal(remedy, {split(where)[0] for where in existing if found[where].error == error})
        silent = [where for where in existing if found[where].error == NO_ANSWER]
        _warn_of_silence(where for where in silent if not _is_gone(where, described))
        return found, described

    def _remember(self, found: Mapping[str, TopicReport]) -> None:
        self._topic_ids |= {topic: report.topic_id for topic, report in found.items() if report.topic_id}

    def _warn_of_refusal(self, remedy: str, topics: Collection[str]) -> None:
        if new := set(topics) - self._refused:
            self._refused |= new
            logger.warning(
                "the brokers do not say which transactions are open in %s. The batch continues without this check. But if an "
                "operator aborts a decided transaction in one partition (kafka-transactions.sh abort), its rows are lost, and "
                "nothing reports the loss. %s",
                " and ".join(sorted(new)),
                remedy,
            )


def _warn_of_silence(places: Iterable[str]) -> None:
    if silent := sorted(places):
        logger.warning(
            "no broker responded for %s, so the driver could not check that the rows of prepared transactions are still "
            "there. (A response above 100 MB counts as no response.) No row is known to be lost. The batch continues "
            "without this check",
            ", ".join(silent),
        )


def unended(
    client: TransactionClient, handles: Iterable[KafkaHandle], *, timeout_ms: float
) -> dict[KafkaHandle, Description]:
    """Return the descriptions of the transactions that are open, or whose coordinator does not respond.

    No EndTxn request has taken effect on an open transaction.
    """
    by_id = {handle.transactional_id: handle for handle in handles}
    found = described(client.describe, by_id, timeout_ms=timeout_ms)
    return {
        handle: found[tid]
        for tid, handle in by_id.items()
        if found[tid].error in NOT_FINAL or (found[tid].is_of(handle) and found[tid].state == "Ongoing")
    }


def _missing(handles: Iterable[KafkaHandle], why: Callable[[str, KafkaHandle], str | None]) -> dict[KafkaHandle, str]:
    """Return the handles that lack rows in a partition, each with the result of ``why`` for its first such partition."""
    reasons = {
        handle: [reason for where in sorted(handle.topic_partitions()) if (reason := why(where, handle))]
        for handle in handles
    }
    return {handle: found[0] for handle, found in reasons.items() if found}


def _is_gone(where: str, topics: Mapping[str, TopicReport]) -> bool:
    topic, number = split(where)
    report = topics[topic]
    return report.error == UNKNOWN_TOPIC or (report.error == NONE and number not in report.leaders)


def _loss(where: str, topics: Mapping[str, TopicReport], topic_ids: Mapping[str, str]) -> str | None:
    """Say why a partition has lost rows, judging by its topic alone."""
    topic, _ = split(where)
    report, before = topics[topic], topic_ids.get(topic)
    if report.error == UNKNOWN_TOPIC:
        return _DELETED.format(topic)
    if before and report.topic_id and report.topic_id != before:
        return _RECREATED.format(topic)
    return _FEWER_PARTITIONS.format(where) if _is_gone(where, topics) else None
