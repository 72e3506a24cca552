"""A task's producer: made, initialised and identified before its one transaction, aborted or dropped after it."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from sinks.kafka.errors import SERVING, translate_in_task
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: librdkafka's own log lines. Without it a dropped producer that outlives its broker would write to stderr for ever.
client_logger = logging.getLogger("twopc.librdkafka")

#: Rare enough to cost nothing; often enough that the last statistics of a transaction come soon (``sinks.kafka.writer``).
_STATISTICS_INTERVAL_MS: Final = 50


@dataclass
class ReadyProducer:
    """An initialised producer without a transaction.

    Attributes:
        producer: librdkafka's.
        transactional_id: its id.
        sequence: the number in its id.
        errors: delivery errors, as they are reported; a vote needs none (rule 2).
        markers: how many partitions of the ledger hold markers.
    """

    producer: Producer
    transactional_id: str
    sequence: int
    errors: list[KafkaError]
    markers: int = 0
    _raw: list[str] = field(default_factory=list)

    @property
    def statistics(self) -> dict[str, Any] | None:
        """The newest statistics of librdkafka. Parsed on demand: most are never used."""
        return json.loads(self._raw[-1]) if self._raw else None

    def identity(self) -> tuple[int, int]:
        """Producer id and epoch, from the producer itself: the broker might describe another one (rule 3)."""
        eos = (self.statistics or {}).get("eos", {})
        return int(eos.get("producer_id", -1)), int(eos.get("producer_epoch", -1))


def connect(producer: Producer, topic: str, *, timeout_s: float) -> int:
    """Connect a new producer, so that its ``init_transactions()`` takes 5 ms instead of 510. Returns the partition count.

    librdkafka looks for the coordinator as soon as a broker *of the cluster* is connected, otherwise after a timer of
    500 ms. The bootstrap address alone may answer the first request (6 of 55 producers); two requests always sufficed
    (112 of 112).

    Raises:
        KafkaException: no broker responds.
    """
    producer.list_topics(topic, timeout=timeout_s)
    return len(producer.list_topics(topic, timeout=timeout_s).topics[topic].partitions)


def make_ready(
    config: Mapping[str, Any], transactional_id: str, sequence: int, ledger: str, *, timeout_ms: float
) -> ReadyProducer:
    """Create and initialise a producer, and wait until its statistics report its producer id and epoch.

    Raises:
        TwoPhaseCommitError: the broker refuses the id, the timeout or the principal, or does not respond.
    """
    errors: list[KafkaError] = []
    raw: list[str] = []

    def keep_newest(statistics: str) -> None:
        raw[:] = [statistics]

    producer = Producer(
        {
            **config,
            "transactional.id": transactional_id,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: errors.append(error),
            "statistics.interval.ms": str(_STATISTICS_INTERVAL_MS),
            "stats_cb": keep_newest,
        },
        logger=client_logger,
    )
    ready = ReadyProducer(producer, transactional_id, sequence, errors, _raw=raw)
    deadline = time.monotonic() + timeout_ms / 1000
    try:
        ready.markers = connect(producer, ledger, timeout_s=timeout_ms / 1000) - 1
        producer.init_transactions(max(0.1, deadline - time.monotonic()))
    except KafkaException as error:
        raise translate_in_task(error, f"initialising the transactional id {transactional_id}") from error
    while min(ready.identity()) < 0:  # not a retry: poll() is what calls back with the statistics
        if time.monotonic() > deadline:
            raise RetriableError(f"{transactional_id}: librdkafka did not report a producer id within {timeout_ms} ms")
        producer.poll(0.01)
    return ready


def drop_quietly(ready: ReadyProducer, timeout_ms: float) -> None:
    """Abort a producer's own transaction. Best effort: the sweep ends what stays open."""
    with contextlib.suppress(*SERVING):
        ready.producer.purge()
        ready.producer.abort_transaction(timeout_ms / 1000)
