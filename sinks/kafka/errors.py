"""Kafka's errors in this project's words: what happened, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from twopc.errors import BadRecordError, ConfigurationError, FencedError, RetriableError, TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Mapping

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001 - public constants with librdkafka's underscore

#: What a call that serves callbacks raises. confluent-kafka raises a fatal error (fenced) inside its own callback, and
#: where a delivery report follows in the same call, Python makes a SystemError of it, with the fatal error as its cause.
SERVING: Final = (KafkaException, SystemError)

_REMEDIES: Final[Mapping[int, tuple[type[TwoPhaseCommitError], str]]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        BadRecordError,
        (
            "a record is larger than the broker or client takes: raise the topic's max.message.bytes and "
            "kafka.message.max.bytes, or make the record smaller"
        ),
    ),
    KafkaError.RECORD_LIST_TOO_LARGE: (
        BadRecordError,
        "a batch of records is larger than the topic takes: raise its max.message.bytes, or lower kafka.batch.size",
    ),
    KafkaError.INVALID_RECORD: (
        BadRecordError,
        "the topic refuses the record (a compacted topic wants a key; or its timestamp is out of the topic's range)",
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: (
        BadRecordError,
        "the topic or partition does not exist: create it, or correct the name",
    ),
    KafkaError._UNKNOWN_TOPIC: (BadRecordError, "the topic does not exist: create it, or correct the name"),  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: (BadRecordError, "the topic has no such partition: correct the column 'partition'"),  # noqa: SLF001
    KafkaError.TOPIC_EXCEPTION: (BadRecordError, "Kafka does not take such a topic name: correct it"),
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        ConfigurationError,
        "the broker's transaction.max.timeout.ms is lower than kafka.transaction.timeout.ms: lower the one or raise the other",
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        ConfigurationError,
        (
            "the principal may not use the transactional id: allow Write and Describe on the transactional ids with the "
            "sink's name and a dot as prefix"
        ),
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        ConfigurationError,
        (
            "the principal may not use the topic: allow Write and Describe on it (on the ledger Read, Create, Delete and "
            "DescribeConfigs too)"
        ),
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        ConfigurationError,
        "the principal may not do this on the cluster: allow IdempotentWrite, or create the ledger by hand",
    ),
    KafkaError.SASL_AUTHENTICATION_FAILED: (
        ConfigurationError,
        "the broker refused the credentials: check kafka.sasl.*",
    ),
    KafkaError._AUTHENTICATION: (ConfigurationError, "the broker refused the credentials: check kafka.sasl.*"),  # noqa: SLF001
    KafkaError._SSL: (ConfigurationError, "TLS failed: check kafka.security.protocol and kafka.ssl.*"),  # noqa: SLF001
    KafkaError.UNSUPPORTED_VERSION: (
        ConfigurationError,
        "the broker is too old: two-phase commit needs Kafka 3.0 or newer",
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
    """Whether a newer producer has taken the transactional id, or the broker timed the transaction out."""
    return error.code() in _FENCED


def translate(error: KafkaException | SystemError | KafkaError, doing: str) -> TwoPhaseCommitError:
    """Our error for one of librdkafka's that left nothing visible.

    Args:
        error: what librdkafka said.
        doing: what was tried, and on what, for the message.
    """
    inner = error_of(error)
    if is_fenced(inner):
        return FencedError(
            f"{doing}: {inner.str()}: a newer driver or task has taken the transactional id, or it timed out"
        )
    kind, remedy = _REMEDIES.get(inner.code(), (RetriableError, ""))
    text = f"{doing}: {inner.str()} ({inner.name()})"
    return kind(f"{text}: {remedy}" if remedy else text)


def translate_in_task(error: KafkaException | SystemError | KafkaError, doing: str) -> TwoPhaseCommitError:
    """As :func:`translate`, of a task's producer: to be fenced is the end of this attempt only.

    Its transaction timed out, it was swept, or an InitProducerId came late. Whether another driver has taken over, a driver is
    told by its log and not by its tasks.
    """
    found = translate(error, doing)
    return RetriableError(str(found)) if isinstance(found, FencedError) else found
