"""Translate Kafka errors into our own errors, which say what happened and what to do."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from socket import gethostname
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

# ruff: noqa: SLF001 - librdkafka codes are public constants with an underscore

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})

_FORGOTTEN: Final = frozenset({KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID})

#: A call that serves callbacks may raise these exceptions. confluent-kafka raises a fatal error (fenced) inside its own callback.
#: If a delivery report follows in the same call, Python raises a SystemError instead, with the fatal error as its cause.
SERVING: Final = (KafkaException, SystemError)

#: Records whose transaction has failed get these errors, which do not say why the transaction failed.
_GIVEN_UP: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

#: A client without a token may report these errors.
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

#: These errors mean that the brokers did not respond in time.
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

#: Possible reasons why brokers do not accept records in time. While a partition has no leader or too few replicas in sync,
#: librdkafka retries, and does not log the reason.
_SILENT: Final = (
    "check the brokers, the network, and the topic's replicas. A partition accepts records only while it has a leader and "
    "at least min.insync.replicas replicas are in sync. If the brokers are only slow, increase the sink's timeout_ms"
)
_LARGER_REQUESTS: Final = "send fewer, larger requests (kafka.batch.size, kafka.linger.ms, kafka.compression.type)"
#: The advice if brokers accept records too slowly.
TOO_MUCH: Final = f"check the network and the quotas; {_LARGER_REQUESTS}"
#: The advice if brokers do not accept records in time.
SLOW_DELIVERY: Final = (
    f"{_SILENT}, and {_LARGER_REQUESTS}. A record may wait as long as kafka.transaction.timeout.ms, because the sink "
    "sets delivery.timeout.ms (message.timeout.ms) to that value"
)
#: The advice for transient errors.
_PASSING: Final = {
    KafkaError._MSG_TIMED_OUT: SLOW_DELIVERY,
    KafkaError.INVALID_PRODUCER_ID_MAPPING: (
        "the brokers have forgotten the transactional id, because it was idle for longer than the brokers' "
        "transactional.id.expiration.ms (7 days by default). No part of this transaction is visible. Restart the "
        "query. If the time between batches may exceed this limit, raise the setting"
    ),
    KafkaError._TIMED_OUT: _SILENT,
}
#: A client reports these errors for a deleted topic.
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_CREDENTIALS: Final = "the broker rejected the credentials: check kafka.sasl.*"
#: The advice for the user, by error.
_BAD_RECORD: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "a record is larger than the topic or the client allows: increase the topic's max.message.bytes and "
        "kafka.message.max.bytes, or make the record smaller"
    ),
    KafkaError.RECORD_LIST_TOO_LARGE: (
        "a batch of records is larger than the topic allows: increase the topic's max.message.bytes, or lower "
        "kafka.batch.size"
    ),
    KafkaError.INVALID_RECORD: (
        "the topic rejects the record: set a key if the topic is compacted, or correct the record's time. The time comes from "
        "the 'timestamp' column, or, without this column, from this host's clock"
    ),
    KafkaError.INVALID_TIMESTAMP: (
        "the topic rejects the record's timestamp: correct or remove the 'timestamp' column, or increase the topic's "
        "message.timestamp.before.max.ms or message.timestamp.after.max.ms"
    ),
    KafkaError.UNKNOWN_TOPIC_OR_PART: "the topic or partition does not exist: create it, or check the name",
    KafkaError._UNKNOWN_TOPIC: "the topic does not exist: create it, or check the name",
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition: check the 'partition' column",
    KafkaError.TOPIC_EXCEPTION: "the topic name is not valid: fix the name",
}
_CONFIGURATION: Final = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "kafka.transaction.timeout.ms (default 900000) exceeds the brokers' "
    "transaction.max.timeout.ms: lower kafka.transaction.timeout.ms, or raise the brokers' limit",
    KafkaError.SASL_AUTHENTICATION_FAILED: _CREDENTIALS,
    KafkaError._AUTHENTICATION: _CREDENTIALS,
    KafkaError._SSL: "TLS failed: check kafka.security.protocol and kafka.ssl.*",
    KafkaError.UNSUPPORTED_VERSION: "the broker is too old: upgrade the broker to Kafka 3.0 or newer",
}


#: The permission to grant for each error, unless the caller names a more precise one.
_DENIED: Final = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactional ids whose prefix is the sink name and a dot",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the permissions that docs/security.md lists for the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Describe on the consumer group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the permissions that docs/security.md lists for the cluster",
}


def on_topic(right: str, topic: str) -> str:
    """Return a description of a permission on a topic, for an error message."""
    contained = ", which Read and Write include" if right == "Describe" else ""
    return f"{right} on the topic {topic}{contained}"


def on_ids(right: str, transactional_id: str) -> str:
    """Describe a permission on all of a sink's transactional ids.

    The argument is any of these ids, because all of them share a prefix.
    """
    return f"{right} on transactional ids with the prefix '{transactional_id.partition('.')[0]}.'"


def error_of(error: KafkaException | SystemError | KafkaError) -> KafkaError:
    """Return the KafkaError in an exception.

    Raises:
        SystemError: the error does not come from Kafka. Other code, such as a signal handler, has raised an exception inside
            the client.
    """
    raised = error.__cause__ if isinstance(error, SystemError) else error
    inner = raised.args[0] if isinstance(raised, KafkaException) else raised
    if isinstance(inner, KafkaError):
        return inner
    if isinstance(error, SystemError):
        raise error
    raise AssertionError(f"this Kafka exception contains no Kafka error: {error!r}")


def cause_of(producer: Any, error: KafkaError) -> KafkaError:
    """If a record's error does not say why the record failed, determine why its transaction failed.

    A purged record's error never says why. If a broker rejects a batch because of a time, the error of each record is
    INVALID_RECORD, and only the transaction's error is INVALID_TIMESTAMP.

    Args:
        producer: the producer, which has begun a transaction. If that transaction has failed, an attempt to begin
            another transaction returns the reason (``rd_kafka_txn_require_state``). The attempt never changes anything.
        error: the record's error.
    """
    is_purged = error.code() in _GIVEN_UP
    if not is_purged and error.code() != KafkaError.INVALID_RECORD:
        return error
    try:
        producer.begin_transaction()
    except SERVING as raised:
        found = error_of(raised)
        explains = is_purged or found.code() == KafkaError.INVALID_TIMESTAMP
        if explains and (found.txn_requires_abort() or found.fatal()):
            return found
    return error


def ledger_gone(error: KafkaError, ledger: str) -> ConfigurationError | None:
    """Build the error to raise if ``error`` means that the ledger no longer exists; otherwise return None.

    An output topic, by contrast, may still be created later.
    """
    return ledger_is_gone(ledger, f" ({error.str()}, {error.name()})") if error.code() in _GONE else None


def ledger_is_gone(ledger: str, why: str = "") -> ConfigurationError:
    """Build the error for a ledger that no longer exists."""
    return ConfigurationError(
        f"the ledger {ledger} no longer exists, or one of its partitions is missing{why}. The topic was deleted while the "
        "query was running, and the sink's decisions were deleted with it. Visible rows stay visible. Do not create "
        "the ledger yourself. Restart the query. The error at startup will say what the checkpoint still contains, and what "
        "to do"
    )


def ledger_changed(error: KafkaError, ledger: str, doing: str) -> TwoPhaseCommitError | None:
    """Build the error to raise if ``error`` means that the ledger's settings were changed while the query was running.

    Brokers reject records without a key in a compacted topic, and decisions have no key.
    """
    text = f"{doing}: {error.str()} ({error.name()})"
    if error.code() == KafkaError.INVALID_RECORD:
        return ConfigurationError(
            f"{text}. The ledger {ledger} must have cleanup.policy=delete, but this setting was probably changed to compact "
            "while the query was running. This record was not written, but the decisions in the ledger are at risk, because "
            "Kafka deletes records without a key from a compacted topic. This is urgent: set cleanup.policy=delete now "
            f"(kafka-configs --alter --topic {ledger}), and then restart the query"
        )
    if error.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}:
        return RetriableError(
            f"{text}. The ledger's max.message.bytes or segment.bytes was probably lowered while the query was running. This "
            "record was not written, and no row is lost or duplicated. Restart the query, which will then read the new limit, "
            "and write smaller records"
        )
    return None


def wrong_clock(error: KafkaError, doing: str) -> ConfigurationError | None:
    """Build the error to raise if a broker rejected the time that this host's clock has set; otherwise return None."""
    if error.code() != KafkaError.INVALID_TIMESTAMP:
        return None
    now = datetime.now(tz=timezone.utc).isoformat(sep=" ", timespec="seconds")
    return ConfigurationError(
        f"{doing}: {error.str()} ({error.name()}). This host's clock sets the record's time. The clock of {gethostname()} shows "
        f"{now}. This is ahead of the broker's clock by more than the topic's message.timestamp.after.max.ms (1 hour by "
        "default in Kafka 4), or behind it by more than message.timestamp.before.max.ms. No row is lost or duplicated. "
        "Synchronize the clocks of this host and the brokers, and restart the query"
    )


def is_fenced(error: KafkaError) -> bool:
    """Return whether a newer producer has initialized the transactional id, or the broker has timed out the transaction."""
    return error.code() in _FENCED


def is_forgotten(error: KafkaError) -> bool:
    """Return whether the brokers have forgotten the producer.

    Another producer may have initialized the transactional id before that.
    """
    return error.code() in _FORGOTTEN


def translate(error: KafkaException | SystemError | KafkaError, doing: str, right: str = "") -> TwoPhaseCommitError:
    """Translate an error from librdkafka to one of our own. No part of the attempt is visible.

    Args:
        error: the error.
        doing: a description of the failed action, for the message.
        right: the permission that the action needs, and the resource to which it applies.
    """
    inner = error_of(error)
    if is_fenced(inner):
        return FencedError(
            f"{doing}: {inner.str()}. A newer driver or task has initialized the transactional id, or the transaction "
            "timed out. No part of the transaction is visible. Restart the query, unless a newer driver is the one that "
            "should run"
        )
    text = f"{doing}: {inner.str()} ({inner.name()})"
    if inner.code() in _GIVEN_UP and right:
        text = (
            f"{text} after another error. The logger twopc.librdkafka shows that error. If a permission is missing, "
            f"allow {right}"
        )
    if inner.code() in _NOT_CONNECTED:
        text = "; ".join([text, *failures()])
    if inner.code() in _DENIED:
        return ConfigurationError(
            f"{text}: the principal does not have a required permission. Allow {right or _DENIED[inner.code()]}, and restart "
            "the query. No data was lost or written twice"
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
    """Translate an error from a task's producer. Unlike :func:`translate`, treat a fenced producer as a failed attempt.

    Such a producer is fenced because the task's transaction timed out or was swept, or because an InitProducerId request
    arrived late. The driver finds out from the decision log, not from its tasks, whether a newer driver has acquired the sink.
    """
    found = translate(error, doing, right)
    return RetriableError(str(found)) if isinstance(found, FencedError) else found


def is_retriable(error: BaseException) -> bool:
    """Return whether one of our own errors may be transient."""
    return isinstance(error, RetriableError)


@contextmanager
def translated(
    doing: str,
    by: Callable[[KafkaException | SystemError, str, str], TwoPhaseCommitError] = translate,
    *,
    right: str = "",
) -> Iterator[None]:
    """Raise our own errors instead of librdkafka's. ``by`` is the function that translates an error.

    For ``right``, see :func:`translate`.
    """
    try:
        yield
    except SERVING as error:
        raise by(error, doing, right) from error
