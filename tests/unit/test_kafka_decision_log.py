"""Rule 12: what the commit of a decision is told to be, and what a slow one is found to be when it is read back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka import decision_log
from sinks.kafka.decision_log import KafkaDecisionLog
from sinks.kafka.driver_producer import DriverProducer
from sinks.kafka.reader import Row
from sinks.kafka.settings import KafkaSettings
from twopc.errors import DecisionInDoubtError, FencedError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = KafkaSettings(
    sink="s", bootstrap_servers="127.0.0.1:1", topic=None, ledger="twopc-ledger-s", options={}, timeout_ms=50
)
OFFSET = 7
OURS = Row(OFFSET, None, b"decision")
NEXT = Row(OFFSET + 2, None, b"a successor's acquisition")


class Partition:
    """Partition 0 as readers see it: each question for its last stable offset finds it further."""

    def __init__(self, *rows: Row, stable: tuple[int, ...] = (OFFSET + 3,)) -> None:
        self._rows, self._stable = rows, list(stable)
        self.questions = 0
        self.read_to: list[int] = []

    def offsets(self, *_: Any, committed: bool, **__: Any) -> dict[int, int]:
        self.questions += 1
        if not committed:
            return {0: OFFSET + 3}
        return {0: self._stable.pop(0) if len(self._stable) > 1 else self._stable[0]}

    def read(self, _topic: str, _partition: int, start: int, *_: Any, end: int, **__: Any) -> list[Row]:
        self.read_to.append(end)
        return [row for row in self._rows if start <= row.offset < self._stable[0]]

    def close(self) -> None: ...


@pytest.fixture
def log() -> Iterator[KafkaDecisionLog]:
    with contextlib.closing(KafkaDecisionLog(SETTINGS)) as log:
        log.reader.close()
        yield log


def read_back(log: KafkaDecisionLog, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    reader: Any = partition
    log.reader = reader
    monkeypatch.setattr(decision_log, "offsets", partition.offsets)
    log._read_back(0, OFFSET, b"decision")


def test_a_record_that_is_there_was_committed(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(OURS, NEXT)
    read_back(log, partition, monkeypatch)
    assert partition.read_to == [OFFSET + 3]  # the end of a broker that is behind is not the end


def test_a_record_that_is_not_stable_yet_is_waited_for(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has the commit, the partition not yet: until then the record is the first unstable one."""
    partition = Partition(OURS, stable=(OFFSET - 2, OFFSET, OFFSET, OFFSET + 2))
    read_back(log, partition, monkeypatch)
    assert partition.questions == 4


@pytest.mark.parametrize(
    "rows", [(), (NEXT,), (Row(OFFSET, None, b"another's"),)], ids=["nothing", "only what follows", "another record"]
)
def test_a_record_that_is_not_there_was_aborted_whatever_else_is(
    rows: tuple[Row, ...], log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FencedError, match="was aborted, although its commit succeeded"):
        read_back(log, Partition(*rows), monkeypatch)


def test_a_record_that_never_becomes_stable_is_in_doubt(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DecisionInDoubtError, match="cannot be read back"):
        read_back(log, Partition(OURS, stable=(OFFSET,)), monkeypatch)


def test_a_question_that_is_not_answered_says_nothing_of_the_record(
    log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, **__: Any) -> dict[int, int]:
        raise RetriableError("no answer")

    monkeypatch.setattr(decision_log, "offsets", silent)
    with pytest.raises(DecisionInDoubtError, match="no answer"):
        log._read_back(0, OFFSET, b"decision")


class Producer:
    """Raises what it is told to when it commits, then it succeeds."""

    def __init__(self, *errors: KafkaError, abort: KafkaError | None = None) -> None:
        self.left = list(errors)
        self._abort = abort

    def commit_transaction(self, _timeout_s: float) -> None:
        if self.left:
            raise KafkaException(self.left.pop(0))

    def abort_transaction(self, _timeout_s: float) -> None:
        if self._abort is not None:
            raise KafkaException(self._abort)


def error(code: int, **kind: bool) -> KafkaError:
    return KafkaError(code, "as told", **kind)


AGAIN = error(KafkaError._TIMED_OUT, retriable=True)
REFUSED = error(KafkaError.INVALID_TXN_STATE, txn_requires_abort=True)
FATAL = error(KafkaError.INVALID_TXN_STATE, fatal=True)
FENCED = error(KafkaError._FENCED, fatal=True)


def commit(producer: Any) -> None:
    driver = object.__new__(DriverProducer)
    driver._producer, driver._timeout_s = producer, 0.05
    driver._ledger, driver._transactional_id = SETTINGS.ledger, "s.driver"
    driver._commit()


def test_a_commit_is_repeated_while_its_error_may_pass() -> None:
    producer = Producer(AGAIN, AGAIN)
    commit(producer)
    assert producer.left == []


@pytest.mark.parametrize(
    ("producer", "told"),
    [
        (Producer(FENCED, AGAIN), FencedError),
        (Producer(REFUSED, AGAIN), RetriableError),
        (Producer(REFUSED, AGAIN, abort=AGAIN), DecisionInDoubtError),
        (Producer(FATAL, AGAIN), DecisionInDoubtError),
        (Producer(AGAIN, FATAL, AGAIN), DecisionInDoubtError),
    ],
    ids=["fenced", "aborted", "not aborted either", "fatal", "fatal when repeated"],
)
def test_only_an_abort_that_succeeds_tells_that_a_commit_did_not(producer: Producer, told: type[Exception]) -> None:
    with pytest.raises(told):
        commit(producer)
    assert producer.left == [AGAIN]  # and it is not asked again
