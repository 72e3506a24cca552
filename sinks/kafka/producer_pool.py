"""Transactional producers, made ready ahead in the idle Python worker, each used for one transaction (rule 5).

A fresh producer's ``init_transactions()`` may take half a second; made in the background it costs the next task nothing.
An id is initialised again only when the batch it last served is settled: by then nobody needs its old epoch, and any
EndTxn for that epoch which still arrives (a retry, a paused driver, KAFKA-17754) is fenced by the new one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from sinks.kafka.errors import SERVING, translate_in_task
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

logger = logging.getLogger(__name__)
#: Librdkafka's own words. A dropped producer that outlives its broker would else tell of it on stderr for ever.
client_logger = logging.getLogger("twopc.librdkafka")

#: Seldom enough to cost nothing, often enough not to be waited for long (the writer's last word, see ``sinks.kafka.writer``).
_STATISTICS_INTERVAL_MS: Final = 50
_NEVER_FREE: Final = sys.maxsize  #: later than any batch that is settled


@dataclass(frozen=True)
class PoolKey:
    """What a stock of producers belongs to: one incarnation of one sink, with one set of options."""

    sink: str
    driver_epoch: int
    ledger: str
    config: tuple[tuple[str, Any], ...]


@dataclass
class ReadyProducer:
    """An initialised producer without a transaction.

    Attributes:
        producer: librdkafka's.
        transactional_id: its id.
        slot: the number in it, for the stock.
        errors: delivery errors, as they are reported; a vote needs none (rule 2).
        markers: how many partitions of the ledger hold markers.
    """

    producer: Producer
    transactional_id: str
    slot: int
    errors: list[KafkaError]
    markers: int = 0
    _raw: list[str] = field(default_factory=list)

    @property
    def statistics(self) -> dict[str, Any] | None:
        """Librdkafka's newest statistics. Parsed late: most of them are never looked at."""
        return json.loads(self._raw[-1]) if self._raw else None

    def identity(self) -> tuple[int, int]:
        """Producer id and epoch, from the producer itself and never from the broker that is asked about them (rule 3)."""
        eos = (self.statistics or {}).get("eos", {})
        return int(eos.get("producer_id", -1)), int(eos.get("producer_epoch", -1))


def connect(producer: Producer, topic: str, *, timeout_s: float) -> int:
    """Connect a fresh producer, so that its ``init_transactions()`` takes 5 ms instead of 510; counts the topic's partitions.

    Librdkafka looks for the coordinator as soon as a broker *of the cluster* is connected, else after a timer of 500 ms. One
    question may be answered by the bootstrap address alone (6 producers of 55); after two that never was so (0 of 112).

    Raises:
        KafkaException: no broker answers.
    """
    producer.list_topics(topic, timeout=timeout_s)
    return len(producer.list_topics(topic, timeout=timeout_s).topics[topic].partitions)


def make_ready(
    config: Mapping[str, Any], transactional_id: str, slot: int, ledger: str, *, timeout_ms: float
) -> ReadyProducer:
    """Create and initialise a producer, and wait until its statistics tell its producer id and epoch.

    Raises:
        TwoPhaseCommitError: the broker refuses the id, the timeout, the principal; or does not answer.
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
    ready = ReadyProducer(producer, transactional_id, slot, errors, _raw=raw)
    deadline = time.monotonic() + timeout_ms / 1000
    try:
        ready.markers = connect(producer, ledger, timeout_s=timeout_ms / 1000) - 1
        producer.init_transactions(max(0.1, deadline - time.monotonic()))
    except KafkaException as error:
        raise translate_in_task(error, f"initialising the transactional id {transactional_id}") from error
    while min(ready.identity()) < 0:
        if time.monotonic() > deadline:
            raise RetriableError(f"{transactional_id}: librdkafka told no producer id within {timeout_ms} ms")
        producer.poll(0.01)
    return ready


class ProducerPool:
    """Ready producers of one :class:`PoolKey` in this process."""

    def __init__(self, key: PoolKey, *, timeout_ms: float) -> None:
        self._key = key
        self._config = dict(key.config)
        self._timeout_ms = timeout_ms
        self._worker = uuid.uuid4().hex
        self._ready: list[ReadyProducer] = []
        self._making: threading.Thread | None = None
        self._lock = threading.Lock()
        self._served: dict[int, int] = {}  # slot -> the batch it last served
        self._in_use_batch = -1
        self._used = 0

    def take(self, batch: int, committed_through: int) -> ReadyProducer:
        """A producer for one transaction of ``batch``, ready if one was made ahead.

        Args:
            batch: the batch it will serve.
            committed_through: up to which batch the driver has proven everything.

        Raises:
            TwoPhaseCommitError: see :func:`make_ready`.
        """
        if batch != self._in_use_batch:
            self._in_use_batch, self._used = batch, 0
        self._used += 1
        # Waiting for the one in the making is never slower than beginning another.
        if not self._ready and self._making is not None:
            self._making.join()
        with self._lock:
            ready = self._ready.pop() if self._ready else None
        if ready is None:
            ready = self._make(self._free_slot(committed_through))
        self._served[ready.slot] = batch
        return ready

    def replenish(self, committed_through: int) -> None:
        """Make as many ready as the last batch used, in the background. Called when a task is done."""
        if self._making is not None and self._making.is_alive():
            return
        missing = max(1, self._used) - len(self._ready)
        if missing <= 0:
            return
        slots: list[int] = []
        for _ in range(missing):
            slot = self._free_slot(committed_through, reserved=slots)
            self._served[slot] = self._in_use_batch  # reserved: not free for another one
            slots.append(slot)
        ahead = (slots, self._in_use_batch)
        self._making = threading.Thread(target=self._make_ahead, args=ahead, name="twopc-producers", daemon=True)
        self._making.start()

    def _free_slot(self, committed_through: int, *, reserved: Collection[int] = ()) -> int:
        kept = {ready.slot for ready in self._ready}.union(reserved)
        for slot, batch in self._served.items():
            if batch <= committed_through and slot not in kept:
                return slot
        return len(self._served)

    def _make(self, slot: int) -> ReadyProducer:
        # Until it is answered, and for ever if it is not: an InitProducerId that comes late aborts what is open under its id.
        self._served[slot] = _NEVER_FREE
        transactional_id = f"{self._key.sink}.{self._key.driver_epoch}.{self._worker}.{slot}"
        return make_ready(self._config, transactional_id, slot, self._key.ledger, timeout_ms=self._timeout_ms)

    def _make_ahead(self, slots: list[int], batch: int) -> None:
        for slot in slots:
            try:
                ready = self._make(slot)
            except Exception as error:  # noqa: BLE001 - the task that needs one will try again and raise it
                # As text: whoever keeps log records must not keep a client alive that goes on asking for the id.
                logger.warning("no producer could be made ahead: %s", str(error))
                return
            with self._lock:
                self._ready.append(ready)
                self._served[slot] = batch


#: In the order of their last use.
_pools: dict[str, tuple[int, PoolKey, ProducerPool]] = {}
#: A worker outlives many queries; each idle producer is three threads, some MB, and twenty statistics a second.
_MOST_POOLS: Final = 8


def pool_for(key: PoolKey, *, timeout_ms: float) -> ProducerPool:
    """This process's stock for ``key``. One of an earlier incarnation, inherited over a fork, or long unused is forgotten."""
    pid, held, pool = _pools.pop(key.sink, (0, None, None))
    if pool is None or held != key or pid != os.getpid():
        pool = ProducerPool(key, timeout_ms=timeout_ms)
    _pools[key.sink] = (os.getpid(), key, pool)
    if len(_pools) > _MOST_POOLS:
        del _pools[next(iter(_pools))]
    return pool


def drop_quietly(ready: ReadyProducer, timeout_ms: float) -> None:
    """Abort a producer's own transaction, best effort: what stays open is the sweep's."""
    with contextlib.suppress(*SERVING):
        ready.producer.purge()
        ready.producer.abort_transaction(timeout_ms / 1000)
