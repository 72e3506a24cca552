"""Prepare producers in advance while a Python worker is idle. Each producer serves one transaction (rule 5).

A new producer's ``init_transactions()`` may take half a second. When the pool calls it in the background, the next task
loses no time. The pool reuses a transactional id only after the last batch that used it is proven committed. The old
epoch is then no longer needed, and the new epoch fences any late EndTxn for the old epoch (a retry, a paused driver,
KAFKA-17754).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

from twopc.sinks.kafka.errors import SERVING
from twopc.sinks.kafka.handle import task_id
from twopc.sinks.kafka.idle import keep_serving
from twopc.sinks.kafka.producer import ReadyProducer, make_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.sinks.kafka.settings import Place

logger = logging.getLogger(__name__)

_NEVER_FREE: Final = sys.maxsize  #: higher than any batch number


@dataclass(frozen=True)
class PoolKey:
    """A pool's key.

    Each pool is for one sink, one driver epoch and one set of options, in one process.
    """

    place: Place
    driver_epoch: int
    config: tuple[tuple[str, Any], ...] = field(repr=False)  # the value may contain passwords
    topic: str | None = None
    pid: int = field(default_factory=os.getpid)


class ProducerPool:
    """Keeps a pool of ready producers for one :class:`PoolKey` in this process."""

    def __init__(self, key: PoolKey, *, timeout_ms: float) -> None:
        self.key = key
        self._config = dict(key.config)
        self._timeout_ms = timeout_ms
        self._worker = uuid.uuid4().hex
        self._ready: list[ReadyProducer] = []
        self._making: threading.Thread | None = None  # the thread that makes producers; None after it has ended
        self._changed = threading.Condition()  # a producer is ready, or no more are being made
        self._served: dict[int, int] = {}  # by sequence number, the batch that the id last served
        self._first_batch: int | None = None
        self._in_use_batch = -1
        self._used = 0
        self._is_closed = False
        self._last_use = time.monotonic()
        keep_serving(self)

    def take(self, batch: int, committed_through: int) -> ReadyProducer:
        """Take a producer for one transaction of ``batch``. A prepared producer is available immediately.

        All batches up to ``committed_through`` are proven committed.
        """
        self._last_use = time.monotonic()
        if self._first_batch is None:
            self._first_batch = batch
        if batch != self._in_use_batch:
            self._in_use_batch, self._used = batch, 0
        self._used += 1
        with self._changed:
            # Waiting for the producer that is being created is never slower than creating another one.
            self._changed.wait_for(lambda: self._ready or self._making is None)
            ready = self._ready.pop() if self._ready else None
        if ready is None:
            ready = self._make(next(self._free_sequences(committed_through)))
        self._served[ready.sequence] = batch
        return ready

    def replenish(self, committed_through: int) -> None:
        """In the background, prepare producers for the next tasks. A task calls this method when it ends.

        A worker runs one task at a time. So two producers are enough, one for the next task and one for the task after that. The
        number of tasks and attempts in a batch does not matter.

        Do nothing in a pool's first batch, because this worker may not live until the next batch. Spark stops a worker that is
        idle for a minute. If each batch has new workers, a prepared producer is never used, but the brokers keep its id for days.
        """
        self._last_use = time.monotonic()
        if self._in_use_batch == self._first_batch:
            return
        if self._is_closed or self._making is not None:
            return
        missing = min(max(1, self._used), _MOST_AHEAD) - len(self._ready)
        if missing <= 0:
            return
        sequences = list(islice(self._free_sequences(committed_through), missing))
        self._served.update(dict.fromkeys(sequences, self._in_use_batch))
        ahead = (sequences, self._in_use_batch)
        self._making = threading.Thread(target=self._make_ahead, args=ahead, name="twopc-producers", daemon=True)
        try:
            self._making.start()
        except RuntimeError:
            self._making = None  # otherwise, the next task would wait for this thread forever
            raise

    def serve_idle(self) -> None:
        """See :class:`~twopc.sinks.kafka.idle.Idle`. Also drop producers that have been idle for a long time."""
        if time.monotonic() - self._last_use > _KEEP_S:
            self.drop_ready()
        with self._changed:
            for ready in self._ready:
                with suppress(*SERVING):  # a failed producer reports its error to the task that takes it
                    ready.producer.poll(0)

    def close(self) -> None:
        """Drop the ready producers, and a producer that is being created. A task keeps the producer that it has taken."""
        self._is_closed = True
        self.drop_ready()

    def drop_ready(self) -> None:
        """Drop the ready producers. The pool still knows its ids, so its next producers have the same ids.

        As in a new pool, the next batch prepares no producers, because these could also be dropped unused.
        """
        self._first_batch = None
        with self._changed:
            dropped, self._ready = self._ready, []
        dropped.clear()  # outside the lock, because a client that ends waits for its threads

    def _free_sequences(self, committed_through: int) -> Iterator[int]:
        kept = {ready.sequence for ready in self._ready}
        for sequence, batch in self._served.items():
            if batch <= committed_through and sequence not in kept:
                yield sequence
        yield from count(len(self._served))

    def _make(self, sequence: int) -> ReadyProducer:
        # Until the broker has responded, and if necessary forever, the pool must not use this id again. Otherwise, a late
        # InitProducerId could abort an open transaction of this id.
        self._served[sequence] = _NEVER_FREE
        tid = task_id(self.key.place.sink, self.key.driver_epoch, self._worker, sequence)
        topics = tuple(topic for topic in (self.key.place.ledger, self.key.topic) if topic is not None)
        return make_ready(self._config, tid, sequence, topics, timeout_ms=self._timeout_ms)

    def _make_ahead(self, sequences: list[int], batch: int) -> None:
        try:
            for sequence in sequences:
                ready = self._make(sequence)
                with self._changed:
                    self._served[sequence] = batch
                    if self._is_closed:
                        return
                    self._ready.append(ready)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - the task that needs a producer tries again and raises the error
            # Log the text only. If a log handler kept the error, its client would live on, and keep requesting the id.
            logger.warning(
                "no producer could be prepared in advance. No data is at risk: the next task creates its own "
                "producer. Cause: %s",
                str(error),
            )
        finally:
            with self._changed:
                self._making = None
                self._changed.notify_all()


#: The pools, in the order of their last use.
_pools: dict[Place, ProducerPool] = {}
#: The lock is needed because a driver has a thread for each of its queries.
_pools_lock: Final = threading.Lock()
#: The number of ready producers in a pool. A batch usually has at most two tasks for each worker.
_MOST_AHEAD: Final = 2
#: The number of pools that keep their ready producers. Each idle producer costs some threads and megabytes.
_MOST_READY: Final = 64
#: The number of pools. A driver drops the pools of queries that have stopped, but a worker outlives many queries. A pool
#: without ready producers costs a few kilobytes. If the pool of a running query were dropped, its next batch would use new
#: transactional ids, which the brokers keep for a week. So the limit is much higher than the number of sinks in a process.
_MOST_POOLS: Final = 4096
#: How long an unused producer stays ready. By then, the brokers have closed its connections (``connections.max.idle.ms``, ten
#: minutes by default), so it would save a task little time.
_KEEP_S: Final = 600.0


def pool_for(key: PoolKey, *, timeout_ms: float) -> ProducerPool:
    """Return this process's pool for ``key``.

    Drop the ready producers of pools that were not used recently. Drop pools that were not used for a long time, and pools
    from an earlier driver epoch or from a parent process.
    """
    with _pools_lock:
        pool = previous = _pools.pop(key.place, None)
        if pool is None or pool.key != key:
            pool = ProducerPool(key, timeout_ms=timeout_ms)
        _pools[key.place] = pool
        oldest = _pools.pop(next(iter(_pools))) if len(_pools) > _MOST_POOLS else None
        unused = next(islice(reversed(_pools.values()), _MOST_READY, None), None)
    if unused is not None and unused.key.pid == key.pid:
        unused.drop_ready()
    for dropped in (previous, oldest):
        if (
            dropped not in {None, pool} and dropped.key.pid == key.pid
        ):  # this process does not have its parent's threads
            dropped.close()
    return pool


def drop_pool(place: Place, driver_epoch: int) -> None:
    """If this process has a pool for a driver that has stopped, drop the pool.

    A writer that is still working keeps its producer.
    """
    with _pools_lock:
        pool = _pools.get(place)
        if pool is None or pool.key.driver_epoch != driver_epoch:
            return
        del _pools[place]
    pool.close()
