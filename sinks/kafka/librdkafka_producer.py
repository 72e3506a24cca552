"""Provide a transactional producer that uses librdkafka's C interface, so that records do not have to become Python objects.

Delivery reports, statistics and log lines are events in one queue. :meth:`LibrdkafkaProducer.poll` reads the queue, so librdkafka
never calls Python. Each accepted record has one delivery report (``delivery.report.only.error`` is off), and the producer reads
every report. So the producer misses no error, and the reports identify every partition to which it has written (rules 2 and 3).

A client, its queue and its topics live as long as this object, and an event lives until it is read. The topics are released
first, and the client last. The caller may release keys and values as soon as a ``produce…`` method returns, because
librdkafka copies them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException

from twopc.sinks.kafka import librdkafka as c
from twopc.sinks.kafka.identity import LEVELS
from twopc.sinks.kafka.librdkafka_reports import facts_of

if TYPE_CHECKING:
    import logging
    from collections import Counter
    from collections.abc import Callable, Mapping

    from twopc.sinks.kafka.client_log import ClientLog
    from twopc.sinks.kafka.identity import Identity

_TEXT_BYTES: Final = 512
_EVENTS: Final = c.DELIVERIES | c.LOG | c.ERROR | c.STATISTICS
#: How long the librdkafka flush may continue after our own flush has ended with an error.
_FLUSH_SLICE_MS: Final = 100
_SERVE_S: Final = 0.01
#: The options that confluent-kafka handles itself.
_CONFLUENT_ONLY: Final = ("plugin.library.paths", "sasl.oauthbearer")

MESSAGE: Final = np.dtype(c.Message)
ARGUMENT: Final = np.dtype(c.Argument)


def accepts(config: Mapping[str, Any]) -> bool:
    """Return whether librdkafka knows every option. It knows neither callbacks nor confluent-kafka's own options."""
    return not any(callable(value) or name.startswith(_CONFLUENT_ONLY) for name, value in config.items())


class LibrdkafkaProducer:
    """Implements the part of confluent-kafka's ``Producer`` that a task needs, with the same exceptions.

    Args:
        library: librdkafka.
        config: librdkafka options.
        delivered: a counter of the acknowledged records for each topic and partition.
        on_error: called with the topic and the error if records were not delivered.
        on_statistics: called with the statistics, if ``statistics.interval.ms`` is set.
        logger: receives the librdkafka log lines, like confluent-kafka's ``logger``.
    """

    def __init__(  # noqa: PLR0913 - one argument for each kind of event
        self,
        library: c.Library,
        config: Mapping[str, Any],
        *,
        delivered: Counter[tuple[str, int]],
        on_error: Callable[[str, KafkaError], object],
        on_statistics: Callable[[str], object] | None,
        logger: logging.Logger | ClientLog | Identity,
    ) -> None:
        self._lib = library
        self._on_error = on_error
        self._on_statistics = on_statistics
        self._logger = logger
        self._delivered = delivered
        self._unreported = 0
        self._topics: dict[str, int] = {}
        self._client = _new_client(library, config)
        self._queue = library.queue_get_main(self._client)
        weakref.finalize(
            self, _destroy, library, self._client, self._queue, self._topics, os.getpid()
        ).atexit = False  # the cleanup is not needed when the process exits
        library.set_log_queue(self._client, None)

    def set_log_level(self, level: int) -> None:
        """Log only lines up to this syslog level."""
        self._lib.set_log_level(self._client, level)

    def list_topics(self, topic: str, timeout: float) -> Any:
        """Return the topic's partitions in confluent-kafka's form, but without details."""
        found = ctypes.POINTER(c.Metadata)()
        handle = self.handle(topic)
        self._check(self._lib.metadata(self._client, 0, handle, ctypes.byref(found), _milliseconds(timeout)))
        try:
            topics = found.contents.topics[: found.contents.topic_count]
            described = {
                facts.topic.decode(): SimpleNamespace(
                    partitions=range(facts.partition_count), error=KafkaError(facts.err) if facts.err else None
                )
                for facts in topics
            }
        finally:
            self._lib.metadata_destroy(found)
        return SimpleNamespace(topics=described)

    def init_transactions(self, timeout: float) -> None:
        """See ``rd_kafka_init_transactions``."""
        self._raise(self._lib.init_transactions(self._client, _milliseconds(timeout)))

    def begin_transaction(self) -> None:
        """See ``rd_kafka_begin_transaction``."""
        self._raise(self._lib.begin_transaction(self._client))

    def abort_transaction(self, timeout: float) -> None:
        """See ``rd_kafka_abort_transaction``. An abort waits for reports, so this thread reads them meanwhile."""
        result: list[int | None] = []
        call = threading.Thread(
            target=lambda: result.append(self._lib.abort_transaction(self._client, _milliseconds(timeout)))
        )
        call.start()
        while call.is_alive():
            with suppress(KafkaException):
                self.poll(_SERVE_S)
        self._raise(result[0])

    def produce(self, topic: str, value: bytes, key: bytes, partition: int) -> None:
        """Enqueue one record."""
        keep = np.frombuffer(value, np.uint8), np.frombuffer(key, np.uint8)
        messages = np.zeros(1, MESSAGE)
        messages["value"], messages["key"] = (array.ctypes.data for array in keep)
        messages["value_size"], messages["key_size"] = len(value), len(key)
        self.produce_batch(topic, messages, partition)
        error = int(messages["err"][0])
        if error == KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka codes have an underscore
            raise BufferError(KafkaError(error).str())
        if error:
            raise KafkaException(not_produced(error))

    def produce_batch(self, topic: str, messages: np.ndarray[Any, Any], partition: int = c.ANY_PARTITION) -> None:
        """Enqueue records, and set each record's ``err``, which is zero if the record was accepted.

        Args:
            topic: the topic of all records.
            messages: a contiguous array of dtype :data:`MESSAGE`. The addresses must stay valid until the call returns.
                The address 0 stands for null.
            partition: the partition of all records; by default, the partitioner chooses a partition.
        """
        self._unreported += self._lib.produce_batch(
            self.handle(topic), partition, c.COPY, messages.ctypes.data, len(messages)
        )

    def produce_arguments(self, address: int, count: int) -> int:
        """Enqueue the record that ``count`` :data:`ARGUMENT` structures at ``address`` describe. Return the error code, or 0."""
        error = self._lib.produceva(self._client, address, count)
        if error is None:
            self._unreported += 1
            return 0
        return self._error(error).code()

    def handle(self, topic: str) -> int:
        """Return a topic handle for :meth:`produce_arguments`. The handle lives as long as this producer."""
        if topic not in self._topics:
            handle = self._lib.topic_new(self._client, topic.encode(), None)
            if handle is None:
                raise KafkaException(not_produced(KafkaError._INVALID_ARG))  # noqa: SLF001
            self._topics[topic] = handle
        return self._topics[topic]

    def poll(self, timeout: float) -> int:
        """Wait for the first event, then read all events. Return the number of events."""
        events, wait_ms = 0, _milliseconds(timeout)
        while event := self._lib.queue_poll(self._queue, wait_ms):
            try:
                self._read(event)
            finally:
                self._lib.event_destroy(event)
            events, wait_ms = events + 1, 0
        return events

    def flush(self, timeout: float) -> int:
        """Send all records now. Return the number of records without a delivery report by the deadline."""
        deadline = time.monotonic() + timeout
        self.poll(0)
        if not self._unreported:
            return 0
        # While the librdkafka flush runs, no record lingers. The flush returns after another thread has read the reports.
        done = threading.Event()
        call = threading.Thread(target=self._flush_until, args=(done,))
        call.start()
        try:
            while self._unreported and time.monotonic() < deadline:
                self.poll(_SERVE_S)
        finally:
            done.set()
            call.join()
        return self._unreported

    def _flush_until(self, done: threading.Event) -> None:
        while not done.is_set():
            self._lib.flush(self._client, _FLUSH_SLICE_MS)

    def _read(self, event: int) -> None:
        kind = self._lib.event_type(event)
        if kind == c.DELIVERIES:
            self._count(event)
        elif kind == c.STATISTICS and self._on_statistics is not None:
            self._on_statistics(self._lib.event_stats(event).decode())
        elif kind == c.LOG:
            self._log(event)
        elif kind == c.ERROR:
            self._require_alive()

    def _count(self, event: int) -> None:
        """Read each record's error, topic and partition from the reports in one event."""
        addresses = np.zeros(self._lib.event_message_count(event), np.uintp)
        read = self._lib.event_message_array(event, addresses.ctypes.data, len(addresses))
        self._unreported -= read
        for (error, handle, partition), records in facts_of(addresses[:read]):
            topic = self._lib.topic_name(handle).decode()
            if error:
                self._on_error(topic, KafkaError(error))
            else:
                self._delivered[topic, partition] += records

    def _log(self, event: int) -> None:
        facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
        self._lib.event_log(event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level))
        name = self._lib.name(self._client)
        said = [(part or b"").decode(errors="replace") for part in (facility.value, name, text.value)]
        self._logger.log(LEVELS[min(level.value, len(LEVELS) - 1)], "%s [%s] %s", *said)

    def _require_alive(self) -> None:
        """Raise the fatal error if there is one. Other errors are transient, or lead to a delivery report."""
        reason = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._lib.fatal_error(self._client, reason, _TEXT_BYTES)
        if code:
            raise KafkaException(KafkaError(code, reason.value.decode(errors="replace"), fatal=True))

    def _check(self, code: int) -> None:
        if code:
            raise KafkaException(KafkaError(code))

    def _raise(self, error: int | None) -> None:
        if error is not None:
            raise KafkaException(self._error(error))

    def _error(self, error: int) -> KafkaError:
        try:
            return KafkaError(
                self._lib.error_code(error),
                self._lib.error_string(error).decode(errors="replace"),
                fatal=bool(self._lib.error_is_fatal(error)),
                retriable=bool(self._lib.error_is_retriable(error)),
                txn_requires_abort=bool(self._lib.error_txn_requires_abort(error)),
            )
        finally:
            self._lib.error_destroy(error)


def not_produced(code: int) -> KafkaError:
    """Build the error that confluent-kafka's ``produce`` raises if librdkafka does not accept a record."""
    return KafkaError(code, f"Unable to produce message: {KafkaError(code).str()}")


def _new_client(library: c.Library, config: Mapping[str, Any]) -> int:
    conf = library.conf_new()
    reason = ctypes.create_string_buffer(_TEXT_BYTES)
    code, client = KafkaError._INVALID_ARG, None  # noqa: SLF001
    settings = {"client.software.name": "confluent-kafka-python", **config, "log.queue": "true"}
    if all(
        library.conf_set(conf, name.encode(), str(value).encode(), reason, _TEXT_BYTES) == c.CONF_OK
        for name, value in settings.items()
    ):
        library.conf_set_events(conf, _EVENTS)
        client = library.new(c.PRODUCER, conf, reason, _TEXT_BYTES)
        code = library.last_error()
    if client is None:
        library.conf_destroy(conf)
        raise KafkaException(KafkaError(code, reason.value.decode(errors="replace")))
    return int(client)  # the client owns the configuration now


def _destroy(library: c.Library, client: int, queue: int, topics: Mapping[str, int], pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked process does not have the client's threads, and would wait for them forever
    for topic in topics.values():
        library.topic_destroy(topic)
    library.queue_destroy(queue)
    library.destroy(client)


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))
