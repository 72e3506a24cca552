"""Learn the size of the largest batch that a topic accepts. Brokers reject larger batches.

Unlike the Java client, librdkafka never splits such batches.

The limit applies to a whole batch. A topic that accepts 64 kB may therefore reject five hundred small records with the same
key. A process reads each topic's limit once per run. If the process has no permission to read the limit, or if the
limit is lowered while the query runs, a broker may reject a batch. The process then sends smaller batches in the next
attempt.

Sources: ``batch.size`` in librdkafka's CONFIGURATION.md; ``analyzeAndValidateRecords`` and ``append`` in Kafka's
``UnifiedLog.scala``.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from twopc.errors import BadRecordError, RetriableError
from twopc.sinks.kafka.topic_settings import settings_of_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.kafka.settings import KafkaSettings, Place

#: The librdkafka default.
_DEFAULT: Final = 1_000_000
#: The Java default. If Spark's own sink can write to a topic with its defaults, the topic accepts batches of this size.
_CAUTIOUS: Final = 16_384
#: The settings that limit a topic's batches. The segment size is a limit because a batch must fit in one segment.
_LIMITS: Final = ("max.message.bytes", "segment.bytes")
#: The broker's errors for a batch that is too large.
_REFUSALS: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})

#: A topic's limit, and the name of the setting that imposes it.
Limit = tuple[int, str]


class BatchSize:
    """The largest batch sizes that a sink's topics accept. Each process determines these sizes once per run."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._chosen = int(settings.client_options.get("batch.size", _DEFAULT))
        self._limits: dict[str, Limit | None] = {}
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """The smaller of two sizes in bytes: the user's setting, and the lowest known limit of a topic."""
        return min([self._chosen, *(limit for limit, _ in filter(None, self._limits.values()))])

    def limit_of(self, topic: str) -> int:
        """Return the size in bytes of the largest batch that a topic accepts, as far as it is known."""
        limit = self._limits.get(topic)
        return limit[0] if limit else sys.maxsize

    def learn(self, topics: Collection[str]) -> None:
        """Read the limits of topics that are not known yet. Raises nothing."""
        if self._limits.keys() >= set(topics):
            return
        with self._lock:
            new = sorted(set(topics) - self._limits.keys())
            self._limits |= _ask(self._settings, new)

    def applied_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Add a suitable batch size to a producer's options."""
        return {**config, "batch.size": str(self.bytes)} if self.bytes < self._chosen else dict(config)

    def too_small_for(self, topics: Collection[str], sent_bytes: int) -> RetriableError | None:
        """Build an error if a topic's limit is less than ``sent_bytes``, a running producer's batch size.

        Otherwise, return None.
        """
        small = [topic for topic in topics if (limit := self._limits.get(topic)) and limit[0] < sent_bytes]
        return RetriableError("; ".join(map(self._lowered, small))) if small else None

    def refusal(
        self, error: KafkaError, topic: str, sent_bytes: int, largest: int, doing: str
    ) -> TwoPhaseCommitError | None:
        """Build the error for a batch that a broker has rejected. Return None if the batch size is not the reason.

        Args:
            error: the error in the delivery report.
            topic: the topic to which the batch was sent.
            sent_bytes: the producer's ``batch.size``.
            largest: the size in bytes of the largest row's key and value.
            doing: a description of the failed action, for the message.
        """
        if error.code() not in _REFUSALS:
            return None
        with self._lock:
            self._limits |= _ask(self._settings, [topic])
            known = self._limits.get(topic)
            if known is None and sent_bytes > _CAUTIOUS:
                self._limits[topic] = (_CAUTIOUS, "")
        text = f"{doing}: {error.str()} ({error.name()})"
        if self.bytes < sent_bytes:
            return RetriableError(f"{text}: {self._lowered(topic)}")
        takes = f"{known[1]}={known[0]}" if known and known[1] else "this principal has no permission to read the limit"
        return BadRecordError(
            f"{text}: a record is larger than the topic {topic} accepts ({takes}). The key and value of this task's "
            f"largest row take up {largest} bytes. Increase the topic's max.message.bytes, or make the record smaller"
        )

    def _lowered(self, topic: str) -> str:
        limit, setting = self._limits[topic] or (0, "")
        if setting:
            return (
                f"the topic {topic} accepts batches of at most {limit} bytes ({setting}). The next attempt will use "
                "this limit"
            )
        return (
            f"the topic {topic} accepts only smaller batches, and its limit could not be read. The next attempt will "
            f"send at most {limit} bytes in a batch. To avoid this failure in the future, allow DescribeConfigs on the "
            f"topic {topic}, or set kafka.batch.size"
        )


def _ask(settings: KafkaSettings, topics: Collection[str]) -> dict[str, Limit | None]:
    """Read each topic's limit, the lowest of the settings in ``_LIMITS``. Without permission to read them, the limit is None.

    The result omits topics that do not exist yet.
    """
    found = settings_of_topics(settings, topics)
    return {
        topic: min((int(entries[name]), name) for name in _LIMITS if name in entries) if entries else None
        for topic, entries in found.items()
    }


#: The cache has a limit because a process outlives many queries. The limit is much higher than the number of sinks in a
#: process, because each sink that is not in the cache costs its next batch a new client and a request.
_MOST_SINKS: Final = 4096
#: The driver's epoch and the limits learned in its run, by process and sink, in the order of their last use.
_known: dict[tuple[int, Place], tuple[int, BatchSize]] = {}
#: The lock is needed because a driver has a thread for each of its queries.
_known_lock: Final = threading.Lock()


def batch_size_of(settings: KafkaSettings, driver_epoch: int) -> BatchSize:
    """Return the batch size limits that this process has determined in one run of a sink."""
    key = (os.getpid(), settings.place)
    with _known_lock:
        known = _known.pop(key, None)
        if known is None or known[0] != driver_epoch:
            known = (driver_epoch, BatchSize(settings))
        _known[key] = known
        if len(_known) > _MOST_SINKS:
            del _known[next(iter(_known))]
    return known[1]
