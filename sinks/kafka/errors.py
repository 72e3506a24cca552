"""Translates Kafka's errors: what happened, to what, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from twopc.errors import BadRecordError, ConfigurationError, FencedError, RetriableError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001 - public constants with librdkafka's underscore

#: What a call that serves callbacks raises. confluent-kafka raises a fatal error (fenced) inside its own callback. If a
#: delivery report follows in the same call, Python makes it a SystemError, with the fatal error as its cause.
SERVING: Final = (KafkaException, SystemError)

_REMEDIES: Final[Mapping[int, tuple[type[TwoPhaseCommitError], str]]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        BadRecordError,
        (
            "a record is larger than the topic or the client allows: raise the topic's max.message.bytes and "
            "kafka.message.max.bytes, or make the record smaller"
        ),
    ),
    KafkaError.RECORD_LIST_TOO_LARGE: (
        BadRecordError,
        "a batch of records is larger than the topic allows: raise its max.message.bytes, or lower kafka.batch.size",
    ),
    KafkaError.INVALID_RECORD: (
        BadRecordError,
        "the topic refuses the record: give it a key if the topic is compacted, or a timestamp in the topic's range",
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: (
        BadRecordError,
        "the topic or partition does not exist: create it, or correct the name",
    ),
    KafkaError._UNKNOWN_TOPIC: (BadRecordError, "the topic does not exist: create it, or correct the name"),  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: (BadRecordError, "the topic has no such partition: correct the column 'partition'"),  # noqa: SLF001
    KafkaError.TOPIC_EXCEPTION: (BadRecordError, "the topic's name is not valid: correct it"),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        ConfigurationError,
        "kafka.transaction.timeout.ms exceeds the brokers' transaction.max.timeout.ms: lower the former or raise the latter",
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        ConfigurationError,
        (
            "the principal may not use the transactional id: allow Write and Describe on the transactional ids whose prefix is "
            "the sink's name and a dot"
        ),
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        ConfigurationError,
        (
            "the principal may not use the topic: allow Write and Describe on it; on the ledger also Read, Create, Delete and "
            "DescribeConfigs"
        ),
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        ConfigurationError,
        "the principal lacks a right on the cluster: allow IdempotentWrite; allow Create, or create the ledger by hand",
    ),
    KafkaError.SASL_AUTHENTICATION_FAILED: (
        ConfigurationError,
        "the broker refused the credentials: check kafka.sasl.*",
    ),
    KafkaError._AUTHENTICATION: (ConfigurationError, "the broker refused the credentials: check kafka.sasl.*"),  # noqa: SLF001
    KafkaError._SSL: (ConfigurationError, "TLS failed: check kafka.security.protocol and kafka.ssl.*"),  # noqa: SLF001
    KafkaError.UNSUPPORTED_VERSION: (
        ConfigurationError,
        "the broker is too old: upgrade it to Kafka 3.0 or newer",
    ),
}


def error_of(error: KafkaException | SystemError | KafkaError) -> KafkaError:
    """The KafkaError in an exception."""
    raised = error.__cause__ if isinstance(error, SystemError) else error
    inner = raised.args[0] if isinstance(raised, KafkaException) else raised
    if not isinstance(inner, KafkaError):
        raise AssertionError(f"a Kafka exception without a Kafka error: {error!r}")
    return inner


def is_fenced(error: KafkaError) -> bool:
    """Whether a newer producer has initialised the transactional id, or the broker timed the transaction out."""
    return error.code() in _FENCED


def translate(error: KafkaException | SystemError | KafkaError, doing: str) -> TwoPhaseCommitError:
    """Our error for one of librdkafka's, after which nothing is visible.

    Args:
        error: librdkafka's.
        doing: what was tried, and on what, for the message.
    """
    inner = error_of(error)
    if is_fenced(inner):
        return FencedError(
            f"{doing}: {inner.str()}: a newer driver or task has initialised the transactional id, or the transaction timed out"
        )
    kind, remedy = _REMEDIES.get(inner.code(), (RetriableError, ""))
    text = f"{doing}: {inner.str()} ({inner.name()})"
    return kind(f"{text}: {remedy}" if remedy else text)


def translate_in_task(error: KafkaException | SystemError | KafkaError, doing: str) -> TwoPhaseCommitError:
    """As :func:`translate`, for a task's producer: being fenced ends only this attempt.

    Its transaction timed out or was swept, or an InitProducerId came late. Whether a newer driver has acquired the sink, the
    driver learns from its log, not from its tasks.
    """
    found = translate(error, doing)
    return RetriableError(str(found)) if isinstance(found, FencedError) else found
