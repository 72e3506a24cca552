"""Where an attempt's markers begin: requested when the attempt before began, so that nobody waits."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka import reader
from sinks.kafka.scan_start import ScanStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MARKERS = [1, 2]


class Brokers:
    """Answers a request for offsets when it is told to; the test sets what the partitions' ends are."""

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

    def wait(self) -> None: ...

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


def test_the_first_attempt_waits_for_the_ends_of_the_markers(scan_start: ScanStart) -> None:
    assert scan_start.take() == {"markers": {"1": 10, "2": 20}, "outputs": {"out": 4}}


def test_a_later_attempt_takes_what_was_requested_when_the_one_before_began(
    scan_start: ScanStart, brokers: Brokers
) -> None:
    scan_start.take()
    brokers.ends, brokers.answers_at_once = {1: 99, 2: 99}, False
    assert scan_start.take()["markers"] == {"1": 10, "2": 20}
    brokers.answer()
    assert scan_start.take()["markers"] == {"1": 99, "2": 99}


def test_partitions_are_looked_up_once_and_each_attempt_is_one_request(scan_start: ScanStart, brokers: Brokers) -> None:
    for _ in range(5):
        scan_start.take()
    assert (brokers.looked_up, brokers.described, len(brokers.requested)) == (1, 1, 6)


def test_without_an_answer_it_asks_again(scan_start: ScanStart, brokers: Brokers) -> None:
    brokers.answers_at_once = False
    replies: Iterator[Callable[[], None]] = iter(
        [brokers.answer, brokers.wait, brokers.answer, brokers.fail, brokers.answer, brokers.wait]
    )
    asked = brokers.list_offsets

    def list_offsets(wanted: Mapping[Any, Any], **settings: Any) -> dict[Any, Future[Any]]:
        found = asked(wanted, **settings)
        next(replies)()
        return found

    brokers.list_offsets = list_offsets  # type: ignore[method-assign]
    for expected in (30, 40, 50):  # nothing was requested yet; no answer to it; an error
        brokers.ends = {1: expected, 2: expected}
        assert scan_start.take()["markers"] == {"1": expected, "2": expected}


def test_an_answer_without_offsets_is_none(scan_start: ScanStart, brokers: Brokers) -> None:
    brokers.ends = {1: 10, 2: 20}
    scan_start.take()
    for future in brokers.requested[-1].values():
        future.result().offset = -1001  # what librdkafka reports when no broker responds
    brokers.ends = {1: 30, 2: 30}
    assert scan_start.take()["markers"] == {"1": 30, "2": 30}


def test_a_leader_that_is_behind_lowers_no_start(scan_start: ScanStart, brokers: Brokers) -> None:
    scan_start.take()
    brokers.ends = {1: 3, 2: 25}
    scan_start.take()
    assert scan_start.take()["markers"] == {"1": 10, "2": 25}


def test_no_start_is_below_what_is_deleted(scan_start: ScanStart) -> None:
    scan_start.at_least({1: 15, 2: 2})
    assert scan_start.take()["markers"] == {"1": 15, "2": 20}


def test_the_reader_waits_no_longer_for_an_answer_than_it_is_told() -> None:
    assert reader._request_s(500) == 0.5
    assert reader._request_s(80_000) == 10
