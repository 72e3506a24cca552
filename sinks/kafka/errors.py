"""Translate Kafka's errors into ours, which say what happened, to what, and what to do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from twopc.errors import (
    BadRecordError,
    ConfigurationError,
    FencedError,
    RetriableError,
    TwoPhaseCommitError,
    UnavailableError,
)
from twopc.sinks.kafka.oauth import failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# ruff: noqa: SLF001 - librdkafka's own codes are public constants with an underscore

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})

#: The exceptions of a call that serves callbacks. confluent-kafka raises a fatal error (fenced) inside its own callback. If a
#: delivery report follows in the same call, Python raises a SystemError instead, with the fatal error as its cause.
SERVING: Final = (KafkaException, SystemError)

#: The errors of records whose transaction has failed; they do not say why.
_GIVEN_UP: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

#: The errors that a client without a token may report.
_NOT_CONNECTED: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)

#: The brokers did not answer in time.
_UNAVAILABLE: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)

#: Why brokers may not accept records in time. librdkafka retries in the last two cases, and does not log why.
_SILENT: Final = (
    "check the brokers, the network, and the topic's replicas: a partition accepts no record while too few replicas are in sync "
    "(fewer than its min.insync.replicas), or while it has no leader. If the brokers are only slow, raise timeout_ms of the sink"
)
_LARGER_REQUESTS: Final = "send fewer, larger requests: kafka.batch.size, kafka.linger.ms, kafka.compression.type"
#: What to do when brokers accept records, but too slowly.
TOO_MUCH: Final = f"check the network and the quotas; {_LARGER_REQUESTS}"
#: What to do when brokers do not accept records in time.
SLOW_DELIVERY: Final = (
    f"{_SILENT}, and {_LARGER_REQUESTS}. A record may wait for kafka.transaction.timeout.ms, because the sink sets "
    "delivery.timeout.ms (message.timeout.ms) to that time"
)
#: What to do about transient errors.
_PASSING: Final = {
    KafkaError._MSG_TIMED_OUT: SLOW_DELIVERY,
    KafkaError.INVALID_PRODUCER_ID_MAPPING: "the brokers have forgotten the transactional id: it was idle for longer than "
    "their transactional.id.expiration.ms (7 days by default). No part of this transaction is visible. Restart the query; "
    "raise that setting if batches are further apart",
    KafkaError._TIMED_OUT: _SILENT,
}
#: The errors that a client reports for a deleted topic.
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_CREDENTIALS: Final = "the broker refused the credentials: check kafka.sasl.*"
#: What a user of the sink can do, by error.
_BAD_RECORD: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "a record is larger than the topic or the client allows: raise the topic's "
    "max.message.bytes and kafka.message.max.bytes, or make the record smaller",
    KafkaError.RECORD_LIST_TOO_LARGE: "a batch of records is larger than the topic allows: raise its max.message.bytes, or "
    "lower kafka.batch.size",
    KafkaError.INVALID_RECORD: "the topic refuses the record: set a key if the topic is compacted, or a timestamp in the "
    "topic's range",
    KafkaError.INVALID_TIMESTAMP: "the topic refuses the record's time: correct or remove the 'timestamp' column, or raise "
    "the topic's message.timestamp.before.max.ms or message.timestamp.after.max.ms",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic or partition does not exist: create it, or correct the name",
    KafkaError._UNKNOWN_TOPIC: "the topic does not exist: create it, or correct the name",
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition: correct the 'partition' column",
    KafkaError.TOPIC_EXCEPTION: "the topic's name is not valid: correct it",
}
_CONFIGURATION: Final = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "kafka.transaction.timeout.ms (default 900000) exceeds the brokers' "
    "transaction.max.timeout.ms: lower kafka.transaction.timeout.ms, or raise the brokers' limit",
    KafkaError.SASL_AUTHENTICATION_FAILED: _CREDENTIALS,
    KafkaError._AUTHENTICATION: _CREDENTIALS,
    KafkaError._SSL: "TLS failed: check kafka.security.protocol and kafka.ssl.*",
    KafkaError.UNSUPPORTED_VERSION: "the broker is too old: upgrade it to Kafka 3.0 or newer",
}


#: The right to allow, by error, unless the caller knows more precisely.
_DENIED: Final = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactional ids whose prefix is the sink's name and a dot",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the rights that docs/security.md lists for the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Describe on the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the rights that docs/security.md lists for the cluster",
}


def on_topic(right: str, topic: str) -> str:
    """Return the wording for a permission on a topic."""
    contained = ", which Read and Write include" if right == "Describe" else ""
    return f"{right} on the topic {topic}{contained}"


def on_ids(right: str, transactional_id: str) -> str:
    """Return the wording for a permission on a sink's transactional ids, given one of them."""
    return f"{right} on transactional ids with the prefix '{transactional_id.partition('.')[0]}.'"


def error_of(error: KafkaException | SystemError | KafkaError) -> KafkaError:
    """Return the KafkaError in an exception."""
    raised = error.__cause__ if isinstance(error, SystemError) else error
    inner = raised.args[0] if isinstance(raised, KafkaException) else raised
    if not isinstance(inner, KafkaError):
        raise AssertionError(f"a Kafka exception without a Kafka error: {error!r}")
    return inner


def cause_of(producer: Any, error: KafkaError) -> KafkaError:
    """Find out why the transaction failed if the record's own error says only that the record was purged.

    Args:
        producer: the producer, which has a transaction. If the transaction has failed, an attempt to begin another one returns
            the reason (``rd_kafka_txn_require_state``). The attempt changes nothing in either case.
        error: the record's error.
    """
    if error.code() not in _GIVEN_UP:
        return error
    try:
        producer.begin_transaction()
    except SERVING as raised:
        found = error_of(raised)
        if found.txn_requires_abort() or found.fatal():
            return found
    return error


def ledger_gone(error: KafkaError, ledger: str) -> ConfigurationError | None:
    """If this error means that the ledger no longer exists, build the error to raise; otherwise return None.

    The topic of a row, by contrast, may still be created.
    """
    return ledger_is_gone(ledger, f" ({error.str()}, {error.name()})") if error.code() in _GONE else None


def ledger_is_gone(ledger: str, why: str = "") -> ConfigurationError:
    """Build the error for a ledger that no longer exists."""
    return ConfigurationError(
        f"the ledger {ledger} no longer exists, or lacks a partition{why}. Somebody deleted it, and the sink's decisions with "
        "it, while the query was running. No part of this batch is visible. Do not create the ledger by hand. Restart the "
        "query; its error will say what the checkpoint still has, and what to do"
    )


def is_fenced(error: KafkaError) -> bool:
    """Whether a newer producer has initialised the transactional id, or the broker timed the transaction out."""
    return error.code() in _FENCED


def translate(error: KafkaException | SystemError | KafkaError, doing: str, right: str = "") -> TwoPhaseCommitError:
    """Translate an error from librdkafka to one of ours. No part of the attempt is visible.

    Args:
        error: the error.
        doing: the action that failed, and its object.
        right: the right that the action needs, and on what.
    """
    inner = error_of(error)
    if is_fenced(inner):
        return FencedError(
            f"{doing}: {inner.str()}; a newer driver or task has initialised the transactional id, or the transaction timed out. "
            "No part of it is visible. Restart the query, unless a newer driver is meant to run"
        )
    text = f"{doing}: {inner.str()} ({inner.name()})"
    if inner.code() in _GIVEN_UP and right:
        text = (
            f"{text} after another error, which the logger twopc.librdkafka shows. If that error is a missing right, allow "
            f"{right}"
        )
    if inner.code() in _NOT_CONNECTED:
        text = "; ".join([text, *failures()])
    if inner.code() in _DENIED:
        return ConfigurationError(
            f"{text}: the principal lacks a right. Allow {right or _DENIED[inner.code()]}, and restart. No data was lost or "
            "written twice"
        )
    if inner.code() in _BAD_RECORD:
        return BadRecordError(f"{text}: {_BAD_RECORD[inner.code()]}")
    if inner.code() in _CONFIGURATION:
        return ConfigurationError(f"{text}: {_CONFIGURATION[inner.code()]}")
    kind = UnavailableError if inner.code() in _UNAVAILABLE else RetriableError
    return kind(f"{text}: {_PASSING[inner.code()]}" if inner.code() in _PASSING else text)


def translate_in_task(
    error: KafkaException | SystemError | KafkaError, doing: str, right: str = ""
) -> TwoPhaseCommitError:
    """Translate like :func:`translate`, but for a task's producer, whose fencing ends only this attempt.

    Its transaction timed out or was swept, or an InitProducerId came late. The driver learns from its log, not from its tasks,
    whether a newer driver has acquired the sink.
    """
    found = translate(error, doing, right)
    return RetriableError(str(found)) if isinstance(found, FencedError) else found


def is_retriable(error: BaseException) -> bool:
    """Whether one of our errors may be transient."""
    return isinstance(error, RetriableError)


@contextmanager
def translated(
    doing: str,
    by: Callable[[KafkaException | SystemError, str, str], TwoPhaseCommitError] = translate,
    *,
    right: str = "",
) -> Iterator[None]:
    """Raise our errors instead of librdkafka's, translated by ``by``. For ``right``, see :func:`translate`."""
    try:
        yield
    except SERVING as error:
        raise by(error, doing, right) from error
