"""Which reports of brokers prove that a transaction has lost rows. ``tests/live/rules`` tests the consequences."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
import pytest

from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.kept_rows import KeptRows, unended
from twopc.sinks.kafka.partition_reports import (
    NOT_ALLOWED,
    NOT_SUPPORTED,
    UNKNOWN_TOPIC,
    PartitionReport,
    TopicReport,
    describe_partitions,
    describe_topics,
)
from twopc.sinks.kafka.reports import NO_ANSWER, NONE, NOT_FOUND, Description

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

HANDLE = KafkaHandle(
    uuid="u",
    transactional_id="s.1.w.0",
    producer_id=7,
    producer_epoch=3,
    marker_partition=2,
    rows=5,
    partitions=("out:0-1", "ledger:2"),
)
WRITERS = {(7, 3): 20, (8, 0): 10}
HERE, OTHER = 1, 2  # brokers


class Brokers:
    """A client of brokers that keep every row, until the test changes a report."""

    def __init__(self) -> None:
        leaders = {0: HERE, 1: HERE, 2: HERE}
        self.described = {topic: TopicReport(NONE, f"id of {topic}", leaders) for topic in ("out", "ledger")}
        self.led = {where: PartitionReport(NONE, WRITERS) for where in ("out:0", "out:1", "ledger:2")}
        self.leader = HERE
        self.requests = 0

    def topics(self, topics: Collection[str]) -> dict[str, TopicReport]:
        self.requests += 1
        return {topic: self.described[topic] for topic in topics}

    def partitions(self, leaders: Mapping[str, int]) -> dict[str, PartitionReport]:
        return {
            where: self.led[where] if node == self.leader else PartitionReport(NO_ANSWER)
            for where, node in leaders.items()
        }

    def recreate(self, topic: str) -> None:
        self.described[topic] = dataclasses.replace(self.described[topic], topic_id="another id")


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def kept(brokers: Brokers) -> KeptRows:
    client: Any = brokers
    return KeptRows(client, timeout_ms=50)


@pytest.fixture
def patient(brokers: Brokers) -> KeptRows:
    """For tests in which a second request succeeds, so a busy machine must not run out of time before it."""
    client: Any = brokers
    return KeptRows(client, timeout_ms=30_000)


def test_rows_that_are_in_their_partitions_are_not_missing(kept: KeptRows) -> None:
    assert kept.topic_ids(["out"]) == {"out": "id of out"}
    assert kept.recreated([HANDLE]) == {}
    assert kept.absent([HANDLE], {}) == {}


@pytest.mark.parametrize("writers", [{}, {(7, 2): 20}, {(8, 3): 20}])
@pytest.mark.parametrize("where", ["out:0", "out:1", "ledger:2"])
def test_a_partition_without_the_open_transaction_has_lost_its_rows(
    kept: KeptRows, brokers: Brokers, where: str, writers: dict[tuple[int, int], int]
) -> None:
    brokers.led[where] = PartitionReport(NONE, writers)
    assert f"the partition {where} no longer contains" in kept.absent([HANDLE], {})[HANDLE]


def test_a_recreated_topic_fails_only_one_attempt(kept: KeptRows, brokers: Brokers) -> None:
    """The next attempt writes all of its rows to the new topic."""
    kept.topic_ids(["out"])
    brokers.recreate("out")
    assert "the topic out was deleted and created again" in kept.recreated([HANDLE])[HANDLE]
    assert kept.topic_ids(["out"]) == {"out": "another id"}
    assert kept.recreated([HANDLE]) == {}


def test_a_topic_from_a_column_is_compared_from_the_second_batch_on(kept: KeptRows, brokers: Brokers) -> None:
    assert kept.recreated([HANDLE]) == {}
    brokers.recreate("out")
    assert HANDLE in kept.recreated([HANDLE])


def test_a_known_topic_costs_no_request_before_an_attempt(kept: KeptRows, brokers: Brokers) -> None:
    for _ in range(3):
        kept.topic_ids(["out"])
    assert brokers.requests == 1


def test_a_deleted_topic_has_lost_its_rows(kept: KeptRows, brokers: Brokers) -> None:
    brokers.described["out"] = TopicReport(UNKNOWN_TOPIC)
    for missing in (kept.recreated([HANDLE]), kept.absent([HANDLE], {})):
        assert "the topic out was deleted" in missing[HANDLE]


def test_a_partition_that_no_longer_exists_has_lost_its_rows(kept: KeptRows, brokers: Brokers) -> None:
    """The topic was recreated with fewer partitions. EndTxn returns NONE: coordinators skip partitions that they do not know."""
    brokers.described["out"] = TopicReport(NONE, "another id", {0: HERE})
    for missing in (kept.recreated([HANDLE]), kept.absent([HANDLE], {})):
        assert "the partition out:1 no longer exists" in missing[HANDLE]


def test_a_broker_that_does_not_know_a_new_partition_yet_is_asked_again(patient: KeptRows, brokers: Brokers) -> None:
    """Otherwise, the first batch after an administrator adds partitions could fail."""
    known, reports = brokers.topics, [brokers.described | {"out": TopicReport(NONE, "id of out", {0: HERE})}] * 2
    brokers.topics = lambda topics: reports.pop() if reports else known(topics)  # type: ignore[method-assign]
    assert patient.recreated([HANDLE]) == {}
    assert patient.absent([HANDLE], {}) == {}
    assert not reports


def test_a_partition_without_a_leader_still_exists(
    kept: KeptRows, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.described["out"] = TopicReport(NONE, "id of out", {0: HERE, 1: None})
    with caplog.at_level(logging.WARNING):
        assert kept.recreated([HANDLE]) == {}
        assert kept.absent([HANDLE], {}) == {}
    [said] = caplog.messages
    assert "no broker responded for out:1, so" in said


def test_a_leader_that_lags_behind_a_recreated_topic_does_not_hide_the_loss(kept: KeptRows, brokers: Brokers) -> None:
    """The first report on the topic is old. The old leader no longer knows the partition, so the next report counts."""
    known, reports = brokers.topics, [dict(brokers.described)]
    brokers.topics = lambda topics: reports.pop() if reports else known(topics)  # type: ignore[method-assign]
    brokers.described["out"] = TopicReport(NONE, "another id", {0: HERE})
    brokers.led["out:1"] = PartitionReport(NO_ANSWER)
    assert "the partition out:1 no longer exists" in kept.absent([HANDLE], {})[HANDLE]


def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(patient: KeptRows, brokers: Brokers) -> None:
    """Otherwise, the first batch for a new topic would fail."""
    known, reports = brokers.topics, [brokers.described | {"out": TopicReport(UNKNOWN_TOPIC)}]
    brokers.topics = lambda topics: reports.pop() if reports else known(topics)  # type: ignore[method-assign]
    assert patient.recreated([HANDLE]) == {}
    assert not reports


def test_a_leader_that_has_moved_is_asked_again(patient: KeptRows, brokers: Brokers) -> None:
    moved = dict.fromkeys(range(3), OTHER)
    known, brokers.leader = brokers.topics, OTHER

    def topics(wanted: Collection[str]) -> dict[str, TopicReport]:
        found = known(wanted)
        brokers.described = {
            topic: dataclasses.replace(report, leaders=moved) for topic, report in brokers.described.items()
        }
        return found

    brokers.topics = topics  # type: ignore[method-assign,assignment]
    brokers.led["out:1"] = PartitionReport(NONE)
    assert "the partition out:1 no longer contains" in patient.absent([HANDLE], {})[HANDLE]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(NOT_ALLOWED, "Allow Read on the topic"), (NOT_SUPPORTED, "never abort a transaction in single partitions")],
)
def test_if_the_leaders_cannot_be_asked_the_topics_ids_are_compared_and_one_warning_says_so(
    kept: KeptRows, brokers: Brokers, caplog: pytest.LogCaptureFixture, error: str, remedy: str
) -> None:
    brokers.led |= dict.fromkeys(("out:0", "out:1"), PartitionReport(error))
    before = {"out": "id of out"}
    with caplog.at_level(logging.WARNING):
        assert kept.absent([HANDLE], before) == {}
        brokers.recreate("out")
        assert "the topic out was deleted and created again" in kept.absent([HANDLE], before)[HANDLE]
    [said] = caplog.messages
    assert said.endswith(remedy) and "transactions are open in out." in said


def test_a_leader_that_does_not_respond_proves_no_loss(
    kept: KeptRows, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition without a leader must not cause committable transactions to be aborted."""
    brokers.leader = OTHER
    with caplog.at_level(logging.WARNING):
        assert kept.absent([HANDLE], {}) == {}
    [said] = caplog.messages
    assert "no broker responded for ledger:2, out:0, out:1" in said and "100 MB" in said


def test_brokers_without_topic_ids_prove_no_loss(kept: KeptRows, brokers: Brokers) -> None:
    brokers.described["out"] = dataclasses.replace(brokers.described["out"], topic_id="")
    assert kept.topic_ids(["out"]) == {}
    brokers.recreate("out")
    assert kept.recreated([HANDLE]) == {}


@pytest.mark.parametrize("found", [Description(NONE, "Ongoing", 7, 3), Description(NO_ANSWER)])
def test_a_transaction_on_which_no_commit_has_taken_effect_is_unended(found: Description) -> None:
    client: Any = SimpleNamespace(describe=lambda ids: dict.fromkeys(ids, found))
    assert list(unended(client, [HANDLE], timeout_ms=5)) == [HANDLE]


@pytest.mark.parametrize(
    "found",
    [
        Description(NONE, "Ongoing", 7, 4),
        Description(NONE, "PrepareCommit", 7, 3),
        Description(NONE, "CompleteCommit", 7, 3),
        Description(NOT_FOUND),
    ],
)
def test_an_ended_transaction_is_not_torn(found: Description) -> None:
    """A committed transaction is not open in any partition, so its partitions look as if they had lost its rows."""
    client: Any = SimpleNamespace(describe=lambda ids: dict.fromkeys(ids, found))
    assert unended(client, [HANDLE], timeout_ms=5) == {}


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (kafka_errors.NotLeaderForPartitionError, NO_ANSWER),
        (kafka_errors.UnknownTopicOrPartitionError, NO_ANSWER),  # another broker may know the partition
        (kafka_errors.TopicAuthorizationFailedError, NOT_ALLOWED),
    ],
)
def test_the_error_of_a_leader_is_reported(error: type[kafka_errors.BrokerResponseError], report: str) -> None:
    row = SimpleNamespace(partition_index=0, error_code=error.errno, active_producers=[])
    response = SimpleNamespace(topics=[SimpleNamespace(name="out", partitions=[row])])
    connection: Any = SimpleNamespace(send_all=lambda _: [response], does_not_know=lambda _: False)
    assert describe_partitions(connection, {"out:0": HERE})["out:0"] == PartitionReport(report)


class Leaders:
    """A connection to leaders that list every producer of the last day. ``silent`` nodes do not respond."""

    def __init__(self, *silent: int) -> None:
        self._silent = silent
        self.asked: list[tuple[int, int]] = []  # the node and the number of partitions of each request

    def does_not_know(self, request: Any) -> bool:
        del request
        return False

    def send_all(self, requests: Sequence[tuple[Any, int]]) -> list[Any]:
        assert len({node for _, node in requests}) == len(requests), "several responses of a node at once"
        return [self._respond(request, node) for request, node in requests]

    def _respond(self, request: Any, node: int) -> Any:
        self.asked.append((node, sum(len(topic.partition_indexes) for topic in request.topics)))
        if node in self._silent:
            return kafka_errors.KafkaConnectionError()
        return SimpleNamespace(
            topics=[
                SimpleNamespace(name=topic.name, partitions=[_row(number) for number in topic.partition_indexes])
                for topic in request.topics
            ]
        )


def _row(partition: int) -> Any:
    producers = [
        SimpleNamespace(producer_id=7, producer_epoch=epoch, current_txn_start_offset=5 if epoch == 3 else -1)
        for epoch in range(4)
    ]
    return SimpleNamespace(partition_index=partition, error_code=0, active_producers=producers)


MANY = {f"{topic}:{number}": HERE if number % 2 else OTHER for topic in ("out", "other") for number in range(25)}


def test_many_partitions_are_described_in_small_responses() -> None:
    """A leader lists every producer of the last day, and a response above 100 MB closes the connection."""
    connection: Any = Leaders()
    found = describe_partitions(connection, MANY)
    assert found == dict.fromkeys(MANY, PartitionReport(NONE, {(7, 3): 5}))
    assert sum(count for _, count in connection.asked) == len(MANY)
    assert max(count for _, count in connection.asked) <= 10


def test_a_silent_leader_of_many_partitions_costs_one_timeout() -> None:
    connection: Any = Leaders(OTHER)
    found = describe_partitions(connection, MANY)
    assert [node for node, _ in connection.asked].count(OTHER) == 1
    assert {node for where, node in MANY.items() if found[where].error == NO_ANSWER} == {OTHER}
    assert {node for where, node in MANY.items() if found[where].error == NONE} == {HERE}


def test_an_unknown_topic_is_reported() -> None:
    row = SimpleNamespace(name="out", error_code=kafka_errors.UnknownTopicOrPartitionError.errno)
    connection: Any = SimpleNamespace(send_all=lambda _: [SimpleNamespace(topics=[row])])
    assert describe_topics(connection, ["out"])["out"] == TopicReport(UNKNOWN_TOPIC)


def test_every_partition_of_a_topic_is_reported() -> None:
    partitions = [SimpleNamespace(partition_index=number, leader_id=leader) for number, leader in ((0, HERE), (1, -1))]
    row = SimpleNamespace(name="out", error_code=0, topic_id=None, partitions=partitions)
    connection: Any = SimpleNamespace(send_all=lambda _: [SimpleNamespace(topics=[row])])
    assert describe_topics(connection, ["out"])["out"] == TopicReport(NONE, "", {0: HERE, 1: None})


def test_leaders_that_do_not_support_the_request_are_not_asked() -> None:
    connection: Any = SimpleNamespace(does_not_know=lambda _: True)
    assert describe_partitions(connection, {"out:0": HERE})["out:0"] == PartitionReport(NOT_SUPPORTED)


def test_a_lost_response_is_no_report() -> None:
    connection: Any = SimpleNamespace(
        send_all=lambda requests: [kafka_errors.KafkaConnectionError()] * len(requests), does_not_know=lambda _: False
    )
    assert describe_topics(connection, ["out"])["out"] == TopicReport(NO_ANSWER)
    assert describe_partitions(connection, {"out:0": HERE})["out:0"] == PartitionReport(NO_ANSWER)
