"""Create and initialize the producer for a task's only transaction. Later, abort the transaction or drop the producer."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, Producer

from twopc.errors import RetriableError, UnavailableError
from twopc.sinks.kafka import librdkafka
from twopc.sinks.kafka.client_log import ClientLog
from twopc.sinks.kafka.errors import SERVING, on_ids, translate_in_task, translated
from twopc.sinks.kafka.identity import UNKNOWN, Identity
from twopc.sinks.kafka.oauth import require_token
from twopc.sinks.kafka.oauth_requests import diagnose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message

    from twopc.sinks.kafka.librdkafka_producer import LibrdkafkaProducer

logger = logging.getLogger(__name__)

#: How long each poll waits for statistics.
_LOOK_S: Final = 0.01

_FOR_ANOTHER: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD}  # noqa: SLF001 - public constants
)


@dataclass
class ReadyProducer:
    """An initialized producer that has not yet begun a transaction.

    Attributes:
        sequence: the number at the end of the transactional id.
        failures: each topic's first delivery error. If a record failed only because of another record, a later error that
            names the cause replaces the first error. A task may vote only if ``failures`` is empty (rule 2).
        markers: the number of marker partitions in the ledger.
        native: ``producer`` itself, if it accepts records that are not Python objects and reports each delivery; None if the
            producer is confluent-kafka's.
        delivered: the number of delivered records for each topic and partition, from the delivery reports.
        identity: the producer's own report of its id and epoch. The broker's report might describe another producer
            (rule 3).
        log: the producer's log.
    """

    producer: Producer | LibrdkafkaProducer
    transactional_id: str
    sequence: int
    failures: dict[str, KafkaError]
    markers: int = 0
    native: LibrdkafkaProducer | None = None
    delivered: Counter[tuple[str, int]] = field(default_factory=Counter)
    identity: tuple[int, int] = UNKNOWN
    log: ClientLog = field(default_factory=ClientLog)


def connect(producer: Producer | LibrdkafkaProducer, topic: str, *, timeout_s: float) -> int:
    """Connect a new producer, so that its ``init_transactions()`` takes 5 ms instead of 510 ms.

    Return the number of partitions in ``topic``.

    librdkafka looks for the coordinator as soon as it is connected to a broker *of the cluster*. Without such a connection, it
    looks only after 500 ms. The first response may come over the bootstrap connection, as it did for 6 of 55 producers.
    In a test, two requests were enough for each of 112 producers.
    """
    try:
        producer.list_topics(topic, timeout=timeout_s)
    except SERVING:
        producer.poll(0)  # read the log lines about the error
        raise
    return len(producer.list_topics(topic, timeout=timeout_s).topics[topic].partitions)


def make_ready(
    config: Mapping[str, Any], transactional_id: str, sequence: int, topics: tuple[str, ...], *, timeout_ms: float
) -> ReadyProducer:
    """Create and initialize a producer.

    ``topics`` contains the ledger and, if all rows have the same topic, that topic. ``topics`` is a tuple because mypy
    would accept a ``str`` as ``Sequence[str]``. If the brokers create topics automatically, the producer's request for
    metadata creates a missing topic.

    Raises:
        ConfigurationError, RetriableError: the producer cannot be initialized.
    """
    require_token(config)
    for by_statistics in (False, True):
        log = ClientLog()
        identity = Identity(config, log, by_statistics=by_statistics)
        try:
            ready = _initialised(config, identity, transactional_id, sequence, topics, timeout_ms=timeout_ms)
        except RetriableError as error:
            diagnose(config)
            raise type(error)(f"{error}{log.said()}") from error
        if ready.identity != UNKNOWN:
            return ready
        _warn_of_statistics(confluent_kafka.libversion()[0])
    raise UnavailableError(f"{transactional_id}: librdkafka did not report a producer id within {timeout_ms} ms")


def _initialised(  # noqa: PLR0913 - the same arguments as make_ready
    config: Mapping[str, Any],
    identity: Identity,
    transactional_id: str,
    sequence: int,
    topics: tuple[str, ...],
    *,
    timeout_ms: float,
) -> ReadyProducer:
    deadline = time.monotonic() + timeout_ms / 1000
    failures: dict[str, KafkaError] = {}
    delivered: Counter[tuple[str, int]] = Counter()
    doing, right = f"initializing the transactional id {transactional_id}", on_ids("Write", transactional_id)
    with translated(doing, translate_in_task, right=right):
        settings = {**config, **identity.options, "transactional.id": transactional_id}
        producer, native = new_producer(settings, failures, delivered, identity.passed_on, identity)
        markers = connect(producer, topics[0], timeout_s=timeout_ms / 1000) - 1
        if native is not None:
            for topic in topics:
                native.handle(
                    topic
                )  # learn the partitions now, so that the first record does not have to wait for them
        producer.init_transactions(max(0.1, deadline - time.monotonic()))
        producer.poll(0)  # read the log lines so far
        while identity.awaits_statistics and time.monotonic() < deadline:
            producer.poll(_LOOK_S)
    if native is not None:
        native.set_log_level(identity.log_level)
    return ReadyProducer(
        producer, transactional_id, sequence, failures, markers, native, delivered, identity.known, identity.passed_on
    )


@cache
def _warn_of_statistics(version: str) -> None:
    logger.warning(
        "librdkafka %s does not log a producer's id in the expected form, so the sink collects statistics to find the "
        "id. Statistics cost more time and memory with each output partition. No data is at risk",
        version,
    )


def new_producer(
    config: Mapping[str, Any],
    failures: dict[str, KafkaError],
    delivered: Counter[tuple[str, int]],
    log: ClientLog,
    identity: Identity | None = None,
) -> tuple[Producer | LibrdkafkaProducer, LibrdkafkaProducer | None]:
    """Create a producer. If it accepts records that are not Python objects, return it twice; if not, return it with None.

    The producer's delivery reports go to ``failures`` and ``delivered``, and its log lines go to ``log`` and ``identity``.
    """
    native = _native(config, failures, delivered, log, identity)
    if native is not None:
        return native, native

    def on_delivery(error: KafkaError | None, record: Message) -> None:
        topic, partition = record.topic(), record.partition()
        if topic is None:
            raise AssertionError("a delivery report has no topic")
        if error is not None:  # perhaps before the record had a partition
            _note(failures, topic, error)
        elif partition is None:
            raise AssertionError("a delivered record has no partition")
        else:
            delivered[topic, partition] += 1

    heard = {} if identity is None else {"stats_cb": identity.read_statistics}
    return Producer({**config, **heard, "on_delivery": on_delivery}, logger=identity or log), None


def _native(
    config: Mapping[str, Any],
    failures: dict[str, KafkaError],
    delivered: Counter[tuple[str, int]],
    log: ClientLog,
    identity: Identity | None,
) -> LibrdkafkaProducer | None:
    library = librdkafka.library()
    if library is None:
        return None
    from twopc.sinks.kafka import librdkafka_producer as native  # noqa: PLC0415 - needs numpy, an optional package

    if not native.accepts(config):
        return None
    return native.LibrdkafkaProducer(
        library,
        config,
        delivered=delivered,
        on_error=lambda topic, error: _note(failures, topic, error),
        on_statistics=None if identity is None else identity.read_statistics,
        logger=identity or log,
    )


def _note(failures: dict[str, KafkaError], topic: str, error: KafkaError) -> None:
    if topic not in failures or is_for_another(failures[topic]):
        failures[topic] = error


def is_for_another(error: KafkaError) -> bool:
    """Return whether another record caused the error.

    That record made the transaction fail, or was rejected in the same request.
    """
    return error.code() in _FOR_ANOTHER


def drop_quietly(ready: ReadyProducer, timeout_ms: float) -> None:
    """Abort a producer's transaction if possible. If the transaction stays open, the sweep ends it later.

    librdkafka waits for records in flight. If no response comes, the transaction stays open, and the sweep fences these
    records. Do not purge the records. After a purge, the abort would leave the epoch unchanged. Brokers before Kafka 3.6 would
    then accept a record that arrives after the abort (KAFKA-14402).
    """
    with suppress(*SERVING):
        ready.producer.abort_transaction(timeout_ms / 1000)
