"""Learn the size of the largest batch that a topic accepts. Brokers reject larger batches.

Unlike the Java client, librdkafka never splits such batches.

The limit applies to a whole batch. A topic that accepts 64 kB may therefore reject five hundred small records with the same
key. A process reads each topic's limit once per run. Without permission to read the limit, the process sends batches as small as
those of the Java client. After any other failure, it does so only until a later request succeeds. If the limit is lowered while
the query runs, a broker rejects one attempt, and the next attempt reads the limit again. All other cases must be handled within
an attempt: an error ends the Python process of Spark's task, and the process loses everything that it has learned.

Sources: ``batch.size`` in librdkafka's CONFIGURATION.md; ``analyzeAndValidateRecords`` and ``append`` in Kafka's
``UnifiedLog.scala``.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError

from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.sinks.kafka.topic_settings import Pauses, Unread, batch_limit, settings_of_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import pyarrow as pa

    from twopc.errors import TwoPhaseCommitError
    from twopc.sinks.kafka.settings import KafkaSettings, Place
    from twopc.sinks.kafka.topic_settings import Limit

    #: What the brokers say about a topic; None if they name no limit.
    Answer = Limit | Unread | None

logger = logging.getLogger(__name__)

#: The librdkafka default.
_DEFAULT: Final = 1_000_000
#: The Java default. If Spark's own sink can write to a topic with the default options, the topic accepts batches of this size.
_CAUTIOUS: Final = 16_384
#: The bytes that Kafka adds to a batch, and the most bytes that Kafka adds to a record's Arrow columns and their offsets.
_BATCH_BYTES: Final = 61
_RECORD_BYTES: Final = 36
#: The broker's errors for a batch that is too large.
_REFUSALS: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


class BatchSize:
    """The largest batch sizes that a sink's topics accept. Each process determines these sizes once per run."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        given = settings.client_options.get("batch.size")
        self._chosen = int(given or _DEFAULT)
        self._cautious = int(given or _CAUTIOUS)
        self._answers: dict[str, Answer] = {}
        self._pauses = Pauses()
        self._has_warned = False
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """The user's setting or the lowest known limit of a topic, whichever is smaller, in bytes.

        For a limit that could not be read, use the user's setting, or else the batch size of the Java client.
        """
        return min([self._chosen, *map(self._accepted, self._answers.values())])

    def _accepted(self, answer: Answer) -> int:
        if isinstance(answer, tuple):
            return answer[0]
        is_absent = isinstance(answer, Unread) and not answer.why
        return self._chosen if is_absent else self._cautious

    def limit_of(self, topic: str) -> int:
        """Return the size in bytes of the largest batch that a topic accepts, or ``sys.maxsize`` if it is unknown."""
        answer = self._answers.get(topic)
        return answer[0] if isinstance(answer, tuple) else sys.maxsize

    def learn(self, topics: Collection[str]) -> None:
        """Read the limits of topics that are not known yet, unless the brokers were asked a moment ago. Raises nothing."""
        if not self._pauses.due(topics):
            return
        with self._lock:
            if due := self._pauses.due(topics):
                self._read(due)

    def _read(self, topics: Collection[str]) -> None:
        found = _ask(self._settings, topics)
        # Store the answers before the pauses, because a thread that finds no topic due does not wait for this thread. Create a
        # new dict, because other threads may be reading the old dict.
        self._answers = self._answers | found
        for topic, answer in found.items():
            self._pauses.note(topic, answer)
        for topic, answer in found.items():
            if (
                isinstance(answer, Unread)
                and answer.is_failure
                and self._cautious < self._chosen
                and not self._has_warned
            ):
                self._has_warned = True
                logger.warning(
                    "sink %r: the settings of the topic %s could not be read (%s). Until a later request succeeds, this process "
                    "sends batches of at most %d bytes, as the Java client does, so writing may be slower. No data is at risk. "
                    "Check the brokers and the network",
                    self._settings.name,
                    topic,
                    answer.why,
                    self._cautious,
                )

    def applied_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Add a suitable batch size to a producer's options."""
        return {**config, "batch.size": str(self.bytes)} if self.bytes < self._chosen else dict(config)

    def refusal(
        self, error: KafkaError, topic: str, sent_bytes: int, largest: int, doing: str
    ) -> TwoPhaseCommitError | None:
        """Build the error for a batch that a broker has rejected. Return None if the batch size is not the reason.

        Args:
            error: the error in the delivery report.
            topic: the topic to which the batch was sent.
            sent_bytes: the size in bytes of the largest batch that the producer sends.
            largest: the size in bytes of the largest row's key and value.
            doing: a description of the failed action, for the message.
        """
        if error.code() not in _REFUSALS:
            return None
        with self._lock:
            self._read([topic])
        answer = self._answers.get(topic)
        limit = answer if isinstance(answer, tuple) else None
        text = f"{doing}: {error.str()} ({error.name()})"
        has = f"This task's largest row has {largest} bytes of key and value"
        if limit is not None and limit[0] < sent_bytes:
            return RetriableError(
                f"{text}: the topic {topic} accepts batches of at most {limit[0]} bytes ({limit[1]}). The next attempt will "
                "use this limit"
            )
        is_unread = isinstance(answer, Unread) and not answer.is_refused
        if limit is None and _BATCH_BYTES + _RECORD_BYTES + largest < sent_bytes:
            sent = (
                f"{text}: the sink sent batches of up to {sent_bytes} bytes, but the topic {topic} accepts only smaller"
            )
            if is_unread and sent_bytes > self._cautious:
                return RetriableError(
                    f"{sent} batches, and its limit could not be read ({_why(answer)}). {has}. The next attempt will ask for the "
                    "limit again, and send smaller batches if no broker answers"
                )
            reason, permit = (
                (f" ({_why(answer)})", "Set")
                if is_unread
                else ("", f"Allow DescribeConfigs on the topic {topic}, or set")
            )
            retry = "If only the request for the limit failed, a restart is enough. Otherwise: " if is_unread else ""
            return ConfigurationError(
                f"{sent} batches, and the sink cannot read its limit{reason}. {has}. No row of this attempt is or will become "
                f"visible. {retry}{permit} kafka.batch.size to the topic's max.message.bytes or less, and restart the query"
            )
        unknown = (
            f"the limit could not be read: {_why(answer)}"
            if is_unread
            else "this principal has no permission to read the limit"
        )
        takes = f"{limit[1]}={limit[0]}" if limit else unknown
        return BadRecordError(
            f"{text}: a record is larger than the topic {topic} accepts ({takes}). {has}. Increase the topic's "
            "max.message.bytes, or make the record smaller"
        )


def _why(answer: Answer) -> str:
    return (isinstance(answer, Unread) and answer.why) or "the broker does not know the topic"


def pieces(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Divide rows into pieces that take up at most ``most_bytes`` in a Kafka batch. A larger row becomes a separate piece."""
    start = 0
    while start < rows.num_rows:
        count = rows.num_rows - start
        while count > 1 and _BATCH_BYTES + _RECORD_BYTES * count + rows.slice(start, count).nbytes > most_bytes:
            count //= 2
        yield rows.slice(start, count)
        start += count


def _ask(settings: KafkaSettings, topics: Collection[str]) -> dict[str, Answer]:
    """Read each topic's limit."""
    found = settings_of_topics(settings, topics)
    return {topic: one if isinstance(one, Unread) else batch_limit(one) for topic, one in found.items()}


#: The cache has a limit because a process outlives many queries. The limit is much higher than the number of sinks in a
#: process. If a sink is no longer in the cache, its next batch needs a new client and another request.
_MOST_SINKS: Final = 4096
#: For each process and sink, the driver epoch and the limits learned in that run. Entries are in the order of their last use.
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
