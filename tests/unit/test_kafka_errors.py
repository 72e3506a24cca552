"""The advice of the Kafka sink's errors."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from twopc.errors import RetriableError
from twopc.sinks.kafka.errors import translate


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
