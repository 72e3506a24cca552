"""The start of an attempt's markers is requested when the previous batch is over, so that nothing waits for it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.sinks.kafka.committer import KafkaCommitter
from twopc.sinks.kafka.scan_start import ScanStart
from twopc.sinks.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

MARKERS = [1, 2]


class Brokers:
    """Answers a request for offsets when the test allows it; the test sets the partitions' ends."""

    def __init__(self) -> None:
        self.ends = {1: 10, 2: 20}
        self.answers_at_once = True
        self.requested: list[dict[Any, Future[Any]]] = []
        self.looked_up = 0
        self.described = 0

    def list_offsets(self, wanted: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self.requested.append({where: Future() for where in wanted})
        if self.answers_at_once:
            self.answer()
        return self.requested[-1]

    def answer(self) -> None:
        for where, future in self.requested[-1].items():
            future.set_result(SimpleNamespace(offset=self.ends[where.partition]))

    def fail(self) -> None:
        for future in self.requested[-1].values():
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))

    def describe_topics(self, *_: Any, **__: Any) -> dict[str, Future[Any]]:
        self.described += 1
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(partitions=[0] * 4))
        return {"out": future}

    def list_topics(self, **_: Any) -> None: ...

    def marker_partitions(self) -> list[int]:
        self.looked_up += 1
        return MARKERS


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def scan_start(brokers: Brokers) -> ScanStart:
    log: Any = SimpleNamespace(admin=brokers, name="ledger", topic=brokers)
    return ScanStart(log, "out", timeout_ms=10_000)


def test_the_first_attempt_waits_for_the_markers_end_offsets(scan_start: ScanStart) -> None:
    assert scan_start.take() == {"markers": {"1": 10, "2": 20}, "outputs": {"out": 4}}


def test_a_later_attempt_uses_the_end_offsets_requested_after_the_previous_batch(
    scan_start: ScanStart, brokers: Brokers
) -> None:
    scan_start.take()
    brokers.ends = {1: 30, 2: 40}
    scan_start.request()
    brokers.ends = {1: 99, 2: 99}
    assert scan_start.take()["markers"] == {"1": 30, "2": 40}


def test_the_committer_requests_the_end_offsets_in_advance(scan_start: ScanStart, brokers: Brokers) -> None:
    class Committer(KafkaCommitter):
        def __init__(self) -> None:
            self._scan_start = scan_start
            self._settings = KafkaSettings(name="s", bootstrap_servers="b:1")
            self._kept_rows: Any = None  # without a topic, nothing is asked

    committer = Committer()
    committer.begin_attempt()
    committer.prefetch()
    assert len(brokers.requested) == 2


def test_a_response_is_used_only_once(scan_start: ScanStart, brokers: Brokers) -> None:
    """Otherwise, a search would have to read the markers of all batches since."""
    scan_start.take()
    scan_start.request()
    scan_start.take()
    brokers.ends = {1: 99, 2: 99}
    assert scan_start.take()["markers"] == {"1": 99, "2": 99}


def test_partitions_are_looked_up_once_and_each_batch_takes_one_request(
    scan_start: ScanStart, brokers: Brokers
) -> None:
    for _ in range(5):
        scan_start.take()
        scan_start.request()
    assert (brokers.looked_up, brokers.described, len(brokers.requested)) == (1, 1, 6)


def test_before_the_first_attempt_nothing_is_requested(scan_start: ScanStart, brokers: Brokers) -> None:
    scan_start.request()  # as after a batch that a restart has only completed
    assert (brokers.looked_up, brokers.requested) == (0, [])


def test_after_an_error_the_end_offsets_are_requested_again(scan_start: ScanStart, brokers: Brokers) -> None:
    scan_start.take()
    brokers.answers_at_once = False
    scan_start.request()
    brokers.fail()
    brokers.answers_at_once, brokers.ends = True, {1: 30, 2: 30}
    assert scan_start.take()["markers"] == {"1": 30, "2": 30}


def test_a_response_without_offsets_counts_as_no_response(scan_start: ScanStart, brokers: Brokers) -> None:
    scan_start.take()
    brokers.ends = {1: -1001, 2: -1001}  # what librdkafka reports when no broker responds
    scan_start.request()
    brokers.ends = {1: 30, 2: 30}
    assert scan_start.take()["markers"] == {"1": 30, "2": 30}


def test_a_lagging_leader_does_not_lower_the_scan_start(scan_start: ScanStart, brokers: Brokers) -> None:
    scan_start.take()
    brokers.ends = {1: 3, 2: 25}
    scan_start.request()
    assert scan_start.take()["markers"] == {"1": 10, "2": 25}


def test_a_scan_does_not_start_below_the_first_remaining_record(scan_start: ScanStart) -> None:
    scan_start.at_least({1: 15, 2: 2})
    assert scan_start.take()["markers"] == {"1": 15, "2": 20}
