"""A request is repeated with new metadata, because the broker that librdkafka has chosen may be down while others respond."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, RetriableError, UnavailableError
from twopc.sinks.kafka import asking
from twopc.sinks.kafka.ledger_topic import LedgerTopic, describe, settings_of
from twopc.sinks.kafka.reader import offsets

SILENT, UNKNOWN = KafkaError._TIMED_OUT, KafkaError.UNKNOWN_TOPIC_OR_PART
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
TIMEOUT_MS = 8_000


class Admin:
    """Answers with an error until its metadata has been refreshed as often as the test demands."""

    def __init__(self, code: int, refreshes: int = 1) -> None:
        self.code, self.left, self.asked = code, refreshes, 0

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> None:
        assert topic is None
        assert timeout in (1, 0.1)
        self.left -= 1
        if self.left > 0:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def _answer(self, result: object) -> Future[Any]:
        self.asked += 1
        future: Future[Any] = Future()
        if self.left > 0:
            future.set_exception(KafkaException(KafkaError(self.code)))
        else:
            future.set_result(result)
        return future

    def describe_topics(self, _: object, request_timeout: float, **__: object) -> dict[str, Future[Any]]:
        assert request_timeout == 1
        return {"t": self._answer(SimpleNamespace(topic_id="id", partitions=[]))}

    def describe_configs(self, _: object, request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == 1
        return {"t": self._answer({"name": SimpleNamespace(value="value")})}

    def create_topics(self, _: object, request_timeout: float, *, validate_only: bool) -> dict[str, Future[Any]]:
        assert (request_timeout, validate_only) == (1, True)
        return {"t": self._answer(None)}

    def list_offsets(self, wanted: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, Future[Any]]:
        return {where: self._answer(SimpleNamespace(offset=4)) for where in wanted}


@pytest.fixture
def silent_twice() -> Admin:
    return Admin(SILENT, refreshes=2)


def test_a_topic_is_described_by_another_broker_if_the_first_one_is_silent(silent_twice: Admin) -> None:
    found: Any = describe(silent_twice, "t", timeout_ms=TIMEOUT_MS)  # type: ignore[arg-type]
    assert (found.topic_id, silent_twice.asked) == ("id", 3)


def test_settings_are_read_from_another_broker_if_the_first_one_is_silent(silent_twice: Admin) -> None:
    assert settings_of(silent_twice, "t", timeout_ms=TIMEOUT_MS) == {"name": "value"}  # type: ignore[arg-type]
    assert silent_twice.asked == 3


def test_the_ledger_is_created_by_another_broker_if_the_first_one_is_silent(
    silent_twice: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerTopic, "_replicas", lambda _: 3)
    LedgerTopic(silent_twice, "t", timeout_ms=TIMEOUT_MS).require_creatable()  # type: ignore[arg-type]
    assert silent_twice.asked == 3


def test_a_refusal_to_create_the_ledger_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy refuses the next request, too."""
    monkeypatch.setattr(LedgerTopic, "_replicas", lambda _: 3)
    admin: Any = Admin(KafkaError.POLICY_VIOLATION)
    with pytest.raises(RetriableError, match="creating the ledger t"):
        LedgerTopic(admin, "t", timeout_ms=TIMEOUT_MS).require_creatable()
    assert admin.asked == 1


def test_a_topic_that_its_leader_does_not_know_yet_is_asked_for_again() -> None:
    """The metadata of one broker lists a topic that was created moments ago. The leader may learn of it later."""
    admin = Admin(UNKNOWN)
    found = offsets(admin, "t", [0], OffsetSpec.latest(), timeout_ms=TIMEOUT_MS)  # type: ignore[arg-type]
    assert (found, admin.asked) == ({0: 4}, 2)


def test_the_error_for_a_topic_that_was_deleted_meanwhile_names_the_topic() -> None:
    admin: Any = Admin(UNKNOWN, refreshes=1_000)
    with pytest.raises(
        RetriableError, match=r"requesting the offsets of t: a broker does not know the topic .*deleted"
    ):
        offsets(admin, "t", [0], OffsetSpec.latest(), timeout_ms=100)


def test_a_topic_that_does_not_exist_is_reported_at_once() -> None:
    admin: Any = Admin(UNKNOWN)
    assert describe(admin, "t", timeout_ms=TIMEOUT_MS) is None
    assert settings_of(admin, "t", timeout_ms=TIMEOUT_MS) is None
    assert LedgerTopic(admin, "t", timeout_ms=TIMEOUT_MS).identity() == ABSENT
    assert admin.asked == 3


def test_a_missing_permission_is_reported_at_once() -> None:
    admin: Any = Admin(DENIED)
    with pytest.raises(ConfigurationError, match="Describe on the topic t"):
        describe(admin, "t", timeout_ms=TIMEOUT_MS)
    assert admin.asked == 1


def test_the_error_is_raised_when_the_timeout_has_elapsed() -> None:
    def request() -> None:
        raise UnavailableError("silence")

    with pytest.raises(UnavailableError, match="silence"):
        asking.ask(SimpleNamespace(list_topics=lambda **_: None), request, timeout_ms=50)  # type: ignore[arg-type]


def test_a_single_request_uses_only_part_of_the_timeout() -> None:
    assert asking.request_s(500) == 0.5
    assert asking.request_s(4_000) == 1
    assert asking.request_s(80_000) == 10


def test_a_broker_that_does_not_know_a_new_ledger_yet_is_asked_again_for_its_partitions() -> None:
    unknown = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
    known = SimpleNamespace(error=None, partitions={0: None, 1: None, 2: None})
    answers = iter([unknown, known])
    admin: Any = SimpleNamespace(list_topics=lambda *_, **__: SimpleNamespace(topics={"t": next(answers)}))
    assert LedgerTopic(admin, "t", timeout_ms=TIMEOUT_MS).marker_partitions() == [1, 2]


@pytest.mark.parametrize("name", ["max.message.bytes", "segment.bytes"])
def test_each_setting_that_limits_the_ledgers_batches_counts(name: str) -> None:
    """Seen: a ledger with small segments refused every large decision, and the error advised to raise another setting."""
    answer: Future[Any] = Future()
    admin: Any = SimpleNamespace(describe_configs=lambda *_, **__: {"t": answer})
    ledger = LedgerTopic(admin, "t", timeout_ms=TIMEOUT_MS)
    answer.set_result({name: SimpleNamespace(value="40000")})
    assert ledger.batch_limit() == 40_000
    answer = Future()
    answer.set_result({name: SimpleNamespace(value="9000")})
    with pytest.raises(ConfigurationError, match=rf"the ledger t has {name}=9000, which is too small"):
        ledger.batch_limit()
