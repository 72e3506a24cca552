"""Rule 12: the reported outcome of a decision's commit, and of a slow commit that is read back."""

from __future__ import annotations

import contextlib
import threading
import tracemalloc
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.attempt import Attempt
from twopc.codec import encode
from twopc.errors import ConfigurationError, DecisionInDoubtError, FencedError, RetriableError
from twopc.log_view import fold
from twopc.records import Acquired, Begin, Decision, TaskReport
from twopc.sinks.kafka import decision_log, driver_producer
from twopc.sinks.kafka.client_log import ClientLog
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.reader import Row
from twopc.sinks.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.records import Record

SETTINGS = KafkaSettings(name="s", bootstrap_servers="127.0.0.1:1", timeout_ms=10_000)
OFFSET = 7
OURS = Row(OFFSET, None, b"decision")
NEXT = Row(OFFSET + 2, None, b"a successor's acquisition")


class Partition:
    """Partition 0 as readers see it; its last stable offset advances with each request."""

    def __init__(self, *rows: Row, stable: tuple[int, ...] = (OFFSET + 3,)) -> None:
        self._held, self._stable = rows, list(stable)
        self.requests = 0
        self.read_to: list[int] = []

    def offsets(self, *_: Any, committed: bool, **__: Any) -> dict[int, int]:
        self.requests += 1
        if not committed:
            return {0: OFFSET + 3}
        return {0: self._stable.pop(0) if len(self._stable) > 1 else self._stable[0]}

    def rows(self, _topic: str, _partition: int, start: int, *_: Any, end: int, **__: Any) -> list[Row]:
        self.read_to.append(end)
        return [row for row in self._held if start <= row.offset < self._stable[0]]

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
    log._read_back(OFFSET, b"decision")


def test_a_record_that_can_be_read_back_was_committed(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Partition(OURS, NEXT)
    read_back(log, partition, monkeypatch)
    assert partition.read_to == [OFFSET + 3]  # the end offset that a lagging broker reports is ignored


def test_a_record_is_read_back_once_it_is_stable(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has the commit but the partition does not yet: the record is still the first unstable one."""
    partition = Partition(OURS, stable=(OFFSET - 2, OFFSET, OFFSET, OFFSET + 2))
    read_back(log, partition, monkeypatch)
    assert partition.requests == 4


@pytest.mark.parametrize(
    "rows", [(), (NEXT,), (Row(OFFSET, None, b"another's"),)], ids=["nothing", "only what follows", "another record"]
)
def test_a_record_that_cannot_be_read_back_was_aborted(
    rows: tuple[Row, ...], log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FencedError, match="was aborted, although librdkafka reported success"):
        read_back(log, Partition(*rows), monkeypatch)


def test_a_record_that_never_becomes_stable_is_in_doubt(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_timeout_ms", 50)
    with pytest.raises(DecisionInDoubtError, match="cannot be read back"):
        read_back(log, Partition(OURS, stable=(OFFSET,)), monkeypatch)


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (FencedError("fenced"), FencedError, "another driver has started.*this batch is not decided"),
        (DecisionInDoubtError("no response"), RetriableError, "could not prove that it still owns the sink"),
        (RetriableError("no leader"), RetriableError, "no leader"),
    ],
    ids=["fenced", "unanswered", "refused"],
)
def test_a_driver_that_cannot_prove_that_it_owns_the_sink_decides_nothing(
    raised: Exception,
    expected: type[Exception],
    said: str,
    log: KafkaDecisionLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decision itself would be in the checkpoint, so an unanswered barrier leaves nothing in doubt."""

    def refuse(values: list[tuple[int, bytes]]) -> int:
        assert [partition for partition, _ in values] == [2]
        raise raised

    monkeypatch.setattr(log, "write", refuse)
    with pytest.raises(expected, match=said):
        log.require_unfenced(2)


def test_an_unanswered_request_leaves_the_decision_in_doubt(
    log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: Any, **__: Any) -> dict[int, int]:
        raise RetriableError("no answer")

    monkeypatch.setattr(decision_log, "offsets", silent)
    monkeypatch.setattr(log, "_timeout_ms", 50)
    with pytest.raises(DecisionInDoubtError, match="no answer"):
        log._read_back(OFFSET, b"decision")


def test_a_closed_log_leaves_no_client_behind_even_if_it_is_still_referenced(log: KafkaDecisionLog) -> None:
    """PySpark keeps the traceback of a query's error, and so the log. Its admin client would look for brokers forever."""
    admin = weakref.ref(log.admin)
    log.close()
    assert admin() is None
    log.close()  # a sink's log is closed by its committer and by its coordinator


@pytest.mark.parametrize("repeats", [True, False])
def test_a_records_end_is_read_back_if_an_earlier_commit_may_still_arrive(
    log: KafkaDecisionLog,
    monkeypatch: pytest.MonkeyPatch,
    repeats: bool,  # noqa: FBT001
) -> None:
    """Otherwise, a quick commit is believed. `tests/nemesis/test_kafka_17754.py` shows what would happen."""
    found: list[tuple[int, bytes]] = []
    monkeypatch.setattr(KafkaDecisionLog, "_read_back", lambda _, offset, value: found.append((offset, value)))
    producer: Any = SimpleNamespace(write=lambda *_, **__: (OFFSET, OFFSET + 1), repeats=repeats)
    log._producer = producer
    assert log.write([(0, b"begin"), (0, b"end")]) == OFFSET
    assert log.write([(1, b"barrier")]) == OFFSET
    assert found == ([(OFFSET + 1, b"end")] if repeats else [])


PRODUCER_ID = 7


class Producer:
    """Raises these errors when it commits, one after another; then it succeeds."""

    def __init__(self, *errors: KafkaError, abort: KafkaError | None = None, aborted_as: int = PRODUCER_ID) -> None:
        self.left = list(errors)
        self.identity = SimpleNamespace(known=(PRODUCER_ID, 0))
        self._abort = abort
        self._aborted_as = aborted_as

    def commit_transaction(self, _timeout_s: float) -> None:
        if self.left:
            raise KafkaException(self.left.pop(0))

    def abort_transaction(self, _timeout_s: float) -> None:
        if self._abort is not None:
            raise KafkaException(self._abort)
        self.identity.known = (self._aborted_as, 1)

    def poll(self, _timeout_s: float) -> int:
        return 0


def error(code: int, **kind: bool) -> KafkaError:
    return KafkaError(code, "as armed", **kind)


AGAIN = error(KafkaError._TIMED_OUT, retriable=True)
REFUSED = error(KafkaError.INVALID_TXN_STATE, txn_requires_abort=True)
FATAL = error(KafkaError.INVALID_TXN_STATE, fatal=True)
FENCED = error(KafkaError._FENCED, fatal=True)
FORGOTTEN = error(KafkaError.INVALID_PRODUCER_ID_MAPPING, txn_requires_abort=True)


def driver_of(producer: Any) -> DriverProducer:
    driver = object.__new__(DriverProducer)
    driver._producer, driver._timeout_s, driver._settings = producer, 0.05, SETTINGS
    driver._ledger, driver._transactional_id, driver._client_log = SETTINGS.ledger, "s.driver", ClientLog()
    driver._identity, driver._producer_id, driver._ended = producer.identity, PRODUCER_ID, ""
    driver.repeats, driver._using = False, threading.Lock()
    return driver


def commit(producer: Any) -> None:
    driver_of(producer)._commit()


def test_a_commit_is_repeated_while_its_error_is_retriable() -> None:
    producer = Producer(AGAIN, AGAIN)
    commit(producer)
    assert producer.left == []


@pytest.mark.parametrize(
    ("producer", "raised"),
    [
        (Producer(FENCED, AGAIN), FencedError),
        (Producer(REFUSED, AGAIN), RetriableError),
        (Producer(REFUSED, AGAIN, abort=AGAIN), DecisionInDoubtError),
        (Producer(FATAL, AGAIN), DecisionInDoubtError),
        (Producer(AGAIN, FATAL, AGAIN), DecisionInDoubtError),
        (Producer(FORGOTTEN, AGAIN), DecisionInDoubtError),
        (Producer(REFUSED, AGAIN, aborted_as=PRODUCER_ID + 1), DecisionInDoubtError),
        (Producer(REFUSED, AGAIN, aborted_as=-1), DecisionInDoubtError),
    ],
    ids=[
        "fenced",
        "aborted",
        "not aborted either",
        "fatal",
        "fatal when repeated",
        "forgotten",
        "forgotten before the abort",
        "not identified",
    ],
)
def test_only_a_successful_abort_proves_that_the_commit_failed(producer: Producer, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        commit(producer)
    assert producer.left == [AGAIN]  # the commit is not repeated


def test_a_slow_commit_is_remembered_even_if_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that librdkafka repeated may still end a later transaction, so no later record is believed either."""
    driver = driver_of(Writes(REFUSED))
    monkeypatch.setattr(driver_producer, "_SLOW_COMMIT_S", -1.0)
    with pytest.raises(RetriableError):
        driver.write([(0, b"one")], point=None)
    monkeypatch.setattr(driver_producer, "_SLOW_COMMIT_S", 3_600.0)
    driver.write([(0, b"two")], point=None)
    assert driver.repeats


def test_a_quick_commit_was_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_producer, "_SLOW_COMMIT_S", 3_600.0)
    driver = driver_of(Writes())
    driver.write([(0, b"one")], point=None)
    assert not driver.repeats


class Writes(Producer):
    """Acknowledges every record."""

    def begin_transaction(self) -> None: ...

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        on_delivery(None, SimpleNamespace(offset=lambda: OFFSET))

    def flush(self, _timeout_s: float) -> int:
        return 0


def ledger_of(log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch, *records: Record) -> KafkaDecisionLog:
    """A ledger that holds these records, made one by one as they are read."""

    def rows(*_: object, **__: object) -> Iterator[Row]:
        for at, record in enumerate(records):
            yield Row(at, None, encode(record, max_bytes=10_000_000)[0])

    reader: Any = SimpleNamespace(rows=rows, close=lambda: None)
    log.reader = reader
    monkeypatch.setattr(decision_log, "offsets", lambda *_, **__: {0: 0})
    monkeypatch.setattr(log, "identity", lambda: "here")
    return log


def acquired_by(*sinks: str) -> list[Record]:
    return [Acquired(query_id=f"query of {s}", run="r", deciding_log="l", driver="d", at_ms=0, sink=s) for s in sinks]


@pytest.mark.parametrize("sinks", [(), ("",), ("s",), ("", "s"), ("s", "t")])
def test_a_ledger_belongs_to_the_first_sink_to_acquire_it_and_a_refused_guest_does_no_harm(
    log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch, sinks: tuple[str, ...]
) -> None:
    """Two sinks that start together both find it empty; a record may name no sink."""
    found = [entry.record for entry in ledger_of(log, monkeypatch, *acquired_by(*sinks)).inspect().entries]
    assert found == acquired_by(*(sink for sink in sinks if sink != "t"))


@pytest.mark.parametrize(("decides", "is_own"), [("s", True), ("t", False)])
def test_a_truncated_ledger_belongs_to_a_sink_of_its_first_decision(
    log: KafkaDecisionLog,
    monkeypatch: pytest.MonkeyPatch,
    decides: str,
    is_own: bool,  # noqa: FBT001
) -> None:
    """The record of the sink that acquired it first is gone; a guest's, which was refused, may be left."""
    begin = Begin(query_id="q", first_batch=0, prior_offsets=())
    scan_start: dict[str, dict[str, Any]] = {decides: {}, "beside": {}}
    decided = Decision(query_id="q", batch_id=0, attempt=Attempt(0, 0), offsets=(), tasks=(), scan_start=scan_start)
    (guest,) = acquired_by("t" if is_own else "s")
    ledger = ledger_of(log, monkeypatch, begin, decided, guest)
    if is_own:
        assert [entry.record for entry in ledger.inspect().entries] == [begin, decided]
    else:
        with pytest.raises(ConfigurationError, match=r"belongs to sink 'beside' or 't'. Sink 's'"):
            fold(ledger.inspect())


@pytest.mark.parametrize("sinks", [("t",), ("", "t"), ("t", "s")])
def test_a_ledger_acquired_first_by_another_sink_is_refused_and_the_error_names_both_sinks(
    log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch, sinks: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError, match=r"belongs to sink 't'.*Remove ledger_topic from sink 's'"):
        fold(ledger_of(log, monkeypatch, *acquired_by(*sinks)).inspect())


def test_a_start_keeps_one_decision_in_memory_and_not_the_whole_log(
    log: KafkaDecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 decisions of 5000 tasks are 1 GiB."""
    tasks = tuple(TaskReport(partition=n, rows=1, checksum=n, handles={"s": {"uuid": "u" * 64}}) for n in range(500))
    begin = Begin(query_id="q", first_batch=0, prior_offsets=())
    whole = Decision(query_id="q", batch_id=0, attempt=Attempt(0, 0), offsets=(), tasks=tasks, scan_start={})
    decided = [msgspec.structs.replace(whole, batch_id=batch) for batch in range(100)]
    one_bytes = len(encode(whole, max_bytes=10_000_000)[0])
    ledger = ledger_of(log, monkeypatch, begin, *decided)
    tracemalloc.start()
    try:
        view = fold(ledger.inspect())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (view.highest_batch, len(view.kept)) == (99, 100)
    assert peak_bytes < 20 * one_bytes
