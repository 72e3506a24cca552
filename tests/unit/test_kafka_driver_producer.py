"""The options of the drivers' producer, whatever options the user sets."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.errors import ConfigurationError, DecisionInDoubtError, FatalError, RetriableError
from twopc.sinks.kafka import driver_producer
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.sinks.kafka.idle import Idle

SETTINGS = KafkaSettings(name="s", bootstrap_servers="127.0.0.1:1", topic="t")


def config_of_driver(
    options: dict[str, str], defaults: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The options of the drivers' producer."""
    given: dict[str, str] = {}

    def producer(config: dict[str, str], **_: object) -> Any:
        given.update(config)
        return SimpleNamespace(init_transactions=lambda _: None, poll=lambda _: 0)

    monkeypatch.setattr(driver_producer, "Producer", producer)
    monkeypatch.setattr(driver_producer, "connect", lambda *_, **__: 1)
    DriverProducer(dataclasses.replace(SETTINGS, options=options), defaults)
    return given


@pytest.mark.parametrize(("theirs", "lives_ms"), [({}, "60000"), ({"kafka.transaction.timeout.ms": "20000"}, "20000")])
def test_the_options_required_for_slow_commits_override_those_of_the_user(
    theirs: dict[str, str], lives_ms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry that comes sooner would pass for a first request. A driver's transaction does not outlive that of a task."""
    options = {"kafka.retry.backoff.ms": "1", "kafka.retry.backoff.max.ms": "2", **theirs}
    given = config_of_driver(options, {}, monkeypatch)
    assert int(given["retry.backoff.ms"]) * 0.8 > driver_producer._SLOW_COMMIT_S * 1000
    assert int(given["retry.backoff.max.ms"]) >= int(given["retry.backoff.ms"])
    assert given["transaction.timeout.ms"] == given["message.timeout.ms"] == lives_ms


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "10000"),
        ({"kafka.transaction.timeout.ms": "5000"}, "5000"),
        ({"kafka.socket.timeout.ms": "120000"}, "60000"),
        ({"kafka.queue.buffering.max.messages": "1"}, "10000"),
    ],
)
def test_librdkafka_accepts_the_drivers_options_along_with_any_user_options(
    options: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: librdkafka refused a transaction timeout shorter than the socket timeout, and named neither setting."""
    given = config_of_driver(options, {"socket.timeout.ms": "10000"}, monkeypatch)
    assert given["socket.timeout.ms"] == expected
    assert int(given["queue.buffering.max.messages"]) > 1000  # all parts of a large record must fit into this queue
    confluent_kafka.Producer({**given, "bootstrap.servers": "", "log_level": 0})


class Forgotten:
    """A producer whose transactional id the brokers have forgotten. Its abort registers the id again, as librdkafka's does."""

    def __init__(self, code: int, logger: Any) -> None:
        self._code = code
        self._logger = logger
        self.registered = 0

    def init_transactions(self, _timeout_s: float) -> None:
        self.registered += 1
        self._logger.log(10, "%s [%s] %s", "GETPID", "s.driver", f"Acquired PID{{Id:{self.registered},Epoch:0}}")

    def begin_transaction(self) -> None:
        pass

    def produce(self, *_: object, on_delivery: Callable[..., None], **__: object) -> None:
        on_delivery(KafkaError(self._code) if self.registered == 1 else None, SimpleNamespace(offset=lambda: 0))

    def flush(self, _timeout_s: float) -> int:
        return 0

    def poll(self, _timeout_s: float) -> int:
        return 0

    def commit_transaction(self, _timeout_s: float) -> None:
        pass

    def abort_transaction(self, timeout_s: float) -> None:
        self.init_transactions(timeout_s)


class Refused(Forgotten):
    """A producer whose record the ledger's leader refuses. Its abort succeeds."""

    def begin_transaction(self) -> None:
        if self._is_refused:
            raise KafkaException(KafkaError(KafkaError._STATE))

    _is_refused = False

    def produce(self, *_: object, on_delivery: Callable[..., None], **__: object) -> None:
        self._is_refused = True
        on_delivery(KafkaError(self._code), SimpleNamespace())

    def abort_transaction(self, _timeout_s: float) -> None:
        pass


def driver_with(producer: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> DriverProducer:
    """Return a driver that writes with this producer, which receives a logger."""
    monkeypatch.setattr(driver_producer, "connect", lambda *_, **__: 1)
    monkeypatch.setattr(driver_producer, "Producer", lambda _, logger: producer(logger))
    return DriverProducer(SETTINGS, {})


@pytest.mark.parametrize(
    ("code", "raised", "registered"),
    [
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, FatalError, 1),
        (KafkaError.UNKNOWN_PRODUCER_ID, FatalError, 1),
        (KafkaError._MSG_TIMED_OUT, DecisionInDoubtError, 2),
    ],
    ids=["the producer is unknown to the coordinator", "the producer is unknown to the leader", "the abort finds out"],
)
def test_a_driver_whose_id_was_forgotten_never_writes_again(
    code: int, raised: type[Exception], registered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver may have fenced this one before, and the id no longer shows it."""
    driver = driver_with(lambda logger: Forgotten(code, logger), monkeypatch)
    with pytest.raises(raised):
        driver.write([(0, b"a decision")], point=None)
    with pytest.raises(FatalError, match="Another driver may have taken over"):
        driver.write([(0, b"a decision")], point=None)
    assert driver._producer.registered == registered  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError.INVALID_RECORD, ConfigurationError, "must have cleanup.policy=delete.*at risk.*urgent"),
        (
            KafkaError.MSG_SIZE_TOO_LARGE,
            RetriableError,
            "max.message.bytes.*Restart the query, which will then read the new limit",
        ),
        (KafkaError.RECORD_LIST_TOO_LARGE, RetriableError, "segment.bytes.*Restart the query"),
    ],
)
def test_a_ledger_whose_settings_were_changed_during_the_run_is_to_blame_and_not_a_row(
    code: int, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen: the error asked for a key in the user's rows, or for a smaller row."""
    driver = driver_with(lambda logger: Refused(code, logger), monkeypatch)
    with pytest.raises(kind, match=said) as caught:
        driver.write([(0, b"a decision")], point=None)
    assert caught.type is kind
    assert "key" not in str(caught.value).replace("without a key", "") and "make the record smaller" not in str(
        caught.value
    )


def test_an_idle_driver_reads_its_clients_events_and_a_write_reads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two decisions, the log lines of a cluster that is away would pile up. A write needs its own reports."""
    polled: list[str] = []

    class Written:
        """Reports a record when the write flushes it."""

        def __init__(self, *_: object, **__: object) -> None:
            self._deliver: Callable[..., None] = lambda *_: None

        def init_transactions(self, _timeout_s: float) -> None: ...

        def begin_transaction(self) -> None: ...

        def produce(self, *_: object, on_delivery: Callable[..., None], **__: object) -> None:
            self._deliver = on_delivery

        def poll(self, _timeout_s: float) -> int:
            polled.append("events")
            return 0

        def flush(self, _timeout_s: float) -> int:
            driver.serve_idle()
            self._deliver(None, SimpleNamespace(offset=lambda: 7))
            return 0

        def commit_transaction(self, _timeout_s: float) -> None: ...

    served: list[Idle] = []
    monkeypatch.setattr(driver_producer, "keep_serving", served.append)
    monkeypatch.setattr(driver_producer, "connect", lambda *_, **__: 1)
    monkeypatch.setattr(driver_producer, "Producer", Written)
    driver = DriverProducer(SETTINGS, {})
    assert served == [driver]
    polled.clear()
    assert driver.write([(0, b"a decision")], point=None) == (7, 7)
    assert polled == []
    driver.serve_idle()
    assert len(polled) == 1
