"""Write rows without transactions, for ``AT_LEAST_ONCE`` and ``NONE``. Readers see the rows before the driver's decision.

This module follows Flink's ``KafkaSink`` (``DeliveryGuarantee``, flink-connector-base; ``KafkaWriter.flush``,
flink-connector-kafka).

With ``AT_LEAST_ONCE``, every record is acknowledged before the vote. With ``NONE``, tasks do not wait for
acknowledgements. A task does not report a handle, so the driver has no transaction to commit, sweep or repair. The
driver still decides the batch. A restart after the decision therefore does not write the batch again, and the query's
other sinks keep their guarantee.

As in Flink, the tasks in a process use the same producer one after another. When a task fails, its producer is
discarded, along with any unsent records. An idle producer is never dropped before it has been flushed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from twopc.counted import counted
from twopc.sinks.kafka.acknowledged import flush_all
from twopc.sinks.kafka.client_log import ClientLog
from twopc.sinks.kafka.errors import SERVING, translate_in_task, translated
from twopc.sinks.kafka.oauth import require_token
from twopc.sinks.kafka.producer import ReadyProducer, new_producer
from twopc.sinks.kafka.settings import AT_LEAST_ONCE
from twopc.sinks.kafka.writer import KafkaWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import KafkaError

    from twopc.attempt import TaskAttempt
    from twopc.sinks.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

#: Producers that wait for their next task, by process, sink and options, in the order of their last use.
_idle: dict[tuple[Any, ...], ReadyProducer] = {}
#: The lock is needed because a driver has a thread for each of its queries.
_idle_lock: Final = threading.Lock()
#: The pool has a limit because a worker outlives many queries, and each producer has three threads.
_MOST_IDLE: Final = 16


class PlainWriter(KafkaWriter):
    """Writes the same rows and raises the same errors as :class:`KafkaWriter`, but without a transaction."""

    def __init__(self, task: TaskAttempt, settings: KafkaSettings) -> None:
        super().__init__(task, settings)
        self._config: dict[str, Any] = {}

    @property
    def _key(self) -> tuple[Any, ...]:
        return (os.getpid(), self._settings.place, tuple(sorted(self._config.items())))

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`. This method does not begin a transaction."""
        self._ready = self._take()

    def _take(self) -> ReadyProducer:
        if self._topic is not None:
            self._batch_size.learn([self._topic])
        self._sent_bytes = self._producer_bytes = self._batch_size.bytes
        self._config = self._batch_size.applied_to(self._settings.plain_config())
        with _idle_lock:
            ready = _idle.pop(self._key, None)
        return ready or self._make()

    def pre_commit(self) -> None:  # type: ignore[override]  # None, as SinkWriter allows, because there is nothing to commit
        """See :class:`SinkWriter`.

        A task may vote only if no delivery has failed. With ``AT_LEAST_ONCE``, the task also needs a delivery report
        for every row (rule 2).
        """
        if self._settings.guarantee == AT_LEAST_ONCE:
            self._flush(self._begun)
        else:
            self._serve(self._begun, 0)

    def hand_over(self) -> None:
        """See :class:`SinkWriter`. The next task reuses the producer."""
        dropped = [] if self._ready is None else _keep(self._key, self._ready)
        super().hand_over()
        self._drop(dropped)

    def abort(self) -> None:
        """See :class:`SinkWriter`. Records that the brokers accepted stay visible."""
        self._ready = None

    def _replace_producer(self) -> None:
        """See :class:`KafkaWriter`. The producer may have unsent records from earlier tasks, whose votes have been counted."""
        ready, self._ready = self._begun, None
        self._drop(_keep(self._key, ready))
        self.begin_transaction()

    def _drop(self, dropped: Sequence[ReadyProducer]) -> None:
        for ready in dropped:
            for unsent in _unsent_of(ready, self._settings.timeout_ms):
                _warn(ready.transactional_id, unsent)

    def close(self) -> None:
        """See :class:`SinkWriter`."""
        super(KafkaWriter, self).close()

    def _make(self) -> ReadyProducer:
        failures: dict[str, KafkaError] = {}
        delivered: Counter[tuple[str, int]] = Counter()
        log = ClientLog()
        label = _label(self._settings)
        require_token(self._config)
        with translated(f"{label}: creating a producer", translate_in_task):
            producer, native = new_producer(self._config, failures, delivered, log)
        return ReadyProducer(producer, label, 0, failures, native=native, delivered=delivered, log=log)


def _keep(key: tuple[Any, ...], ready: ReadyProducer) -> list[ReadyProducer]:
    """Keep a producer for the next task. Return the producers that were removed to make room; they may have unsent records."""
    with _idle_lock:
        same = _idle.pop(key, None)  # the producer of a task that ran at the same time
        _idle[key] = ready
        ours = [kept for kept in _idle if kept[0] == key[0]]  # a parent's producers have no threads in this process
        oldest = _idle.pop(ours[0]) if len(ours) > _MOST_IDLE else None
    return [dropped for dropped in (same, oldest) if dropped is not None]


def _unsent_of(ready: ReadyProducer, timeout_ms: float) -> list[str]:
    """Flush a producer that is no longer needed. Return what could not be sent."""
    try:
        left = flush_all(ready.producer.flush, silence_s=timeout_ms / 1000)
    except SERVING as error:
        return [str(error)]
    unsent = [f"{counted(left, 'record was', 'records were')} not acknowledged, and may be lost"] if left else []
    return unsent + [f"{topic}: {error.str()}" for topic, error in ready.failures.items()]


def release(settings: KafkaSettings) -> list[str]:
    """Flush and drop a sink's idle producers in this process. Return a message for each producer with unsent records."""
    ours = (os.getpid(), settings.place)
    with _idle_lock:
        dropped = [_idle.pop(key) for key in [key for key in _idle if key[:2] == ours]]
    return [unsent for ready in dropped for unsent in _unsent_of(ready, settings.timeout_ms)]


def let_go(settings: KafkaSettings) -> None:
    """Flush and drop a sink's idle producers, and log a warning if records could not be sent."""
    for unsent in release(settings):
        _warn(_label(settings), unsent)


def _label(settings: KafkaSettings) -> str:
    return f"{settings.name} ({settings.guarantee})"


def _warn(label: str, unsent: str) -> None:
    logger.warning("sink %s: %s", label, unsent)
