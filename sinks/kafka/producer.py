"""A task's producer: made, initialised and identified before its one transaction, aborted or dropped after it."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, Producer

from sinks.kafka import librdkafka
from sinks.kafka.errors import SERVING, on_ids, translate_in_task, translated
from sinks.kafka.oauth import require_token
from sinks.kafka.oauth_requests import diagnose
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sinks.kafka.librdkafka_producer import LibrdkafkaProducer

#: librdkafka's own log lines. Without it a dropped producer that outlives its broker would write to stderr for ever.
client_logger = logging.getLogger("twopc.librdkafka")

#: Rare enough to cost nothing; often enough that the last statistics of a transaction come soon (``sinks.kafka.writer``).
_STATISTICS_INTERVAL_MS: Final = "50"


_FOR_ANOTHER: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._INVALID_DIFFERENT_RECORD}  # noqa: SLF001 - public constants
)


@dataclass
class ReadyProducer:
    """An initialised producer without a transaction.

    Attributes:
        sequence: the number in its transactional id.
        failures: each topic's first delivery error, rather one that says why than that a record was given up for another; a
            vote needs none (rule 2).
        markers: how many partitions of the ledger hold markers.
        native: the producer, if it takes records that are no Python objects and reports each one's delivery; otherwise
            it is confluent-kafka's.
    """

    producer: Producer | LibrdkafkaProducer
    transactional_id: str
    sequence: int
    failures: dict[str, KafkaError]
    markers: int = 0
    native: LibrdkafkaProducer | None = None
    _statistics: Sequence[str] = ()

    @property
    def statistics(self) -> dict[str, Any] | None:
        """The newest statistics of librdkafka. Parsed on demand: most are never used."""
        return json.loads(self._statistics[-1]) if self._statistics else None

    def identity(self) -> tuple[int, int]:
        """Producer id and epoch, from the producer itself: the broker might describe another one (rule 3)."""
        eos = (self.statistics or {}).get("eos", {})
        return int(eos.get("producer_id", -1)), int(eos.get("producer_epoch", -1))


def connect(producer: Producer | LibrdkafkaProducer, topic: str, *, timeout_s: float) -> int:
    """Connect a new producer, so that its ``init_transactions()`` takes 5 ms instead of 510. Returns the partition count.

    librdkafka looks for the coordinator as soon as a broker *of the cluster* is connected, otherwise after a timer of
    500 ms. The bootstrap address alone may answer the first request (6 of 55 producers); two requests always sufficed
    (112 of 112).
    """
    producer.list_topics(topic, timeout=timeout_s)
    return len(producer.list_topics(topic, timeout=timeout_s).topics[topic].partitions)


def make_ready(
    config: Mapping[str, Any], transactional_id: str, sequence: int, topics: tuple[str, ...], *, timeout_ms: float
) -> ReadyProducer:
    """Create and initialise a producer, and wait until its statistics report its producer id and epoch.

    ``topics`` are the ledger and the topic of the rows, if there is only one. They are a tuple because mypy takes a ``str`` for a
    ``Sequence[str]``: a producer creates the topics that it asks for, where brokers allow that.
    """
    failures: dict[str, KafkaError] = {}
    newest: deque[str] = deque(maxlen=1)
    deadline = time.monotonic() + timeout_ms / 1000
    require_token(config)
    try:
        doing, right = f"initialising the transactional id {transactional_id}", on_ids("Write", transactional_id)
        with translated(doing, translate_in_task, right=right):
            settings = {
                **config,
                "transactional.id": transactional_id,
                "statistics.interval.ms": _STATISTICS_INTERVAL_MS,
            }
            producer, native = new_producer(settings, failures, newest)
            ready = ReadyProducer(producer, transactional_id, sequence, failures, native=native, _statistics=newest)
            ready.markers = connect(producer, topics[0], timeout_s=timeout_ms / 1000) - 1
            if native is not None:
                for topic in topics:
                    native.handle(topic)  # learns its partitions meanwhile; the first record need not wait for them
            producer.init_transactions(max(0.1, deadline - time.monotonic()))
    except RetriableError:
        diagnose(config)
        raise
    while min(ready.identity()) < 0:  # not a retry: poll() is what calls back with the statistics
        if time.monotonic() > deadline:
            raise RetriableError(f"{transactional_id}: librdkafka did not report a producer id within {timeout_ms} ms")
        producer.poll(0.01)
    return ready


def new_producer(
    config: Mapping[str, Any], failures: dict[str, KafkaError], statistics: deque[str]
) -> tuple[Producer | LibrdkafkaProducer, LibrdkafkaProducer | None]:
    """Create a producer that notes delivery errors in ``failures``; twice if it takes records that are no Python objects."""
    native = _native(config, failures, statistics)
    if native is not None:
        return native, native
    return Producer(
        {
            **config,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, record: _note(failures, record.topic(), error),
            "stats_cb": statistics.append,
        },
        logger=client_logger,
    ), None


def _native(
    config: Mapping[str, Any], failures: dict[str, KafkaError], statistics: deque[str]
) -> LibrdkafkaProducer | None:
    library = librdkafka.library()
    if library is None:
        return None
    from sinks.kafka import librdkafka_producer as native  # noqa: PLC0415 - it needs numpy, which the base does not bring

    if not native.accepts(config):
        return None
    return native.LibrdkafkaProducer(
        library,
        config,
        on_error=lambda topic, error: _note(failures, topic, error),
        on_statistics=statistics.append,
        logger=client_logger,
    )


def _note(failures: dict[str, KafkaError], topic: str, error: KafkaError) -> None:
    if topic not in failures or is_for_another(failures[topic]):
        failures[topic] = error


def is_for_another(error: KafkaError) -> bool:
    """Whether another record is to blame: one that failed the transaction, or that was refused in the same request."""
    return error.code() in _FOR_ANOTHER


def drop_quietly(ready: ReadyProducer, timeout_ms: float) -> None:
    """Abort a producer's own transaction. Best effort: the sweep ends what stays open.

    librdkafka waits for records that are on their way; without an answer to them the transaction stays open, and the sweep
    fences them. They must not be purged: the abort would leave the epoch as it is, and brokers before Kafka 3.6 take a record
    that arrives after it (KAFKA-14402).
    """
    with suppress(*SERVING):
        ready.producer.abort_transaction(timeout_ms / 1000)
