"""A command's own topic is deleted in the end, and the error of the command comes before the error of the deletion."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError
from twopc.integration.migrate import clock
from twopc.integration.migrate.own_topic import own_topic


class Admin:
    """Creates topics, and does not delete them if ``problem`` is set."""

    def __init__(self, problem: int | None = None) -> None:
        self.topics: set[str] = set()
        self._problem = problem

    def create_topics(self, wanted: list[Any], **_: Any) -> dict[str, Future[None]]:
        self.topics |= {one.topic for one in wanted}
        return {one.topic: done(None) for one in wanted}

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Future[None]]:
        if self._problem is None:
            self.topics -= set(names)
        return {name: done(self._problem) for name in names}


def done(problem: int | None) -> Future[None]:
    future: Future[None] = Future()
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(KafkaException(KafkaError(problem)))
    return future


def test_the_topic_is_deleted_in_the_end() -> None:
    admin: Any = Admin()
    with own_topic(admin, "t", 1):
        assert admin.topics == {"t"}
    assert not admin.topics


@pytest.mark.parametrize("error", [RetriableError("too slow"), SystemExit(143)])
def test_the_topic_is_deleted_after_an_error_or_a_signal(error: BaseException) -> None:
    admin: Any = Admin()
    with pytest.raises(type(error)), own_topic(admin, "t", 1):
        raise error
    assert not admin.topics


def test_a_failed_deletion_is_an_error() -> None:
    admin: Any = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with (
        pytest.raises(ConfigurationError, match=r"deleting the topic t.*Delete on the topic t"),
        own_topic(admin, "t", 1),
    ):
        pass


def test_a_failed_deletion_does_not_hide_the_first_error(caplog: pytest.LogCaptureFixture) -> None:
    admin: Any = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(RetriableError, match="too slow"), own_topic(admin, "t", 1):
        raise RetriableError("too slow")
    assert "the topic t is left behind" in caplog.text


def test_a_rejected_record_is_reported_with_its_cause() -> None:
    """Seen: the finding said that the record was not acknowledged in time."""

    class Rejecting:
        def produce(self, *_: Any, on_delivery: Any) -> None:
            self.delivered = on_delivery

        def flush(self, *_: Any) -> None:
            self.delivered(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)

    producer: Any = Rejecting()
    with pytest.raises(TwoPhaseCommitError, match="Allow Write on the topic t"):
        clock._stamped(producer, "t", 1)
