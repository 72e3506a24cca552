"""The advice of the Kafka sink's errors."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.errors import RetriableError
from twopc.sinks.kafka.errors import translate, translated


@pytest.mark.parametrize(("code", "advises"), [(KafkaError._MSG_TIMED_OUT, True), (KafkaError._TRANSPORT, False)])
def test_the_error_for_a_timed_out_message_mentions_the_batching_and_delivery_settings(
    code: int,
    advises: bool,  # noqa: FBT001
) -> None:
    error = translate(KafkaException(KafkaError(code)), "s.1.w.0: writing to t")
    assert isinstance(error, RetriableError)
    settings = (
        "kafka.batch.size",
        "kafka.linger.ms",
        "kafka.transaction.timeout.ms",
        "delivery.timeout.ms",
        "timeout_ms",
    )
    assert {setting in str(error) for setting in settings} == {advises}


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), MemoryError(), None])
def test_a_system_error_that_is_not_kafkas_is_raised_as_it_is(cause: BaseException | None) -> None:
    """A signal handler may raise its exception inside the client, too. An AssertionError would hide it."""
    error = SystemError("<method 'poll'> returned a result with an exception set")
    error.__cause__ = cause
    with pytest.raises(SystemError) as raised, translated("s.1.w.0: writing to t"):
        raise error
    assert raised.value is error
    assert error.__cause__ is cause


def test_a_system_error_with_an_error_of_kafka_is_translated() -> None:
    error = SystemError("<method 'poll'> returned a result with an exception set")
    error.__cause__ = KafkaException(KafkaError(KafkaError._TRANSPORT))
    with pytest.raises(RetriableError, match=r"s\.1\.w\.0: writing to t"), translated("s.1.w.0: writing to t"):
        raise error
