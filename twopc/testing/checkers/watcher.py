"""Read a topic with ``read_committed`` while faults happen in the cluster, and remember the records."""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from twopc.testing.checkers.history import Observation, Position, StableOffset

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_POLL_S: Final = 0.1
#: The names of the client's errors begin with an underscore, although they are public.
_LOST: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001 - see above
_AT_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - see above
_SAMPLE_EVERY_MS: Final = 250
_ANSWER_TIMEOUT_S: Final = 30.0


class Watcher:
    """Reads a topic from its beginning, in a separate thread, until the context ends.

    Args:
        bootstrap_servers: the addresses of the cluster itself, not of a proxy that injects faults.
        topic: the topic to read; partitions that are added later are not read.
        options: more consumer options, for example connection options.

    Attributes:
        observed: every record that the watcher read, in order.
        stable_offsets: the offsets up to which the watcher could read, as librdkafka reported them over time.
    """

    def __init__(self, bootstrap_servers: str, topic: str, **options: Any) -> None:
        self.observed: list[Observation] = []
        self.stable_offsets: list[StableOffset] = []
        self._topic = topic
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0, **options})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "log_level": 0,  # here, brokers are expected to disappear
                "group.id": f"watcher-{uuid.uuid4().hex}",
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",  # a silent jump to another offset would hide a loss
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "statistics.interval.ms": _SAMPLE_EVERY_MS,
                "stats_cb": self._sample,
                **options,
            }
        )
        self._partitions = _partitions_of(self._consumer, topic)
        self._reached = dict.fromkeys(self._partitions, 0)
        self._moved = threading.Condition()
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name=f"watcher-{topic}", daemon=True)

    def __enter__(self) -> Self:
        """Start reading."""
        self._consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self._partitions])
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop reading, and raise the thread's error, if any."""
        self._is_over.set()
        self._thread.join()
        self._consumer.close()
        if self._error is not None and error is None:
            raise self._error

    def catch_up(self, within_s: float = 30) -> list[Observation]:
        """Wait until all records that are readable now have been read; return all records read so far.

        Raises:
            AssertionError: the watcher did not catch up in time.
        """
        deadline = time.monotonic() + within_s
        ends = self._stable_ends()
        # A partition whose broker has just returned has no leader yet.
        while min(ends.values()) < 0 and time.monotonic() < deadline:
            self._is_over.wait(_POLL_S)
            ends = self._stable_ends()
        assert min(ends.values()) >= 0, f"a broker did not respond within {within_s:g} s: {ends}"
        with self._moved:
            done = self._moved.wait_for(
                lambda: self._error or all(self._reached[partition] >= end for partition, end in ends.items()),
                max(0, deadline - time.monotonic()),
            )
        if self._error is not None:
            raise self._error
        assert done, (
            f"the watcher did not catch up within {within_s:g} s: it has read up to {self._reached}, but the end "
            f"offsets are {ends}"
        )
        return list(self.observed)

    def _stable_ends(self) -> dict[int, int]:
        asked = self._admin.list_offsets(
            {TopicPartition(self._topic, partition): OffsetSpec.latest() for partition in self._partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_ANSWER_TIMEOUT_S,
        )
        # A broker that does not respond is reported as a negative offset.
        return {where.partition: future.result().offset for where, future in asked.items()}

    def _watch(self) -> None:
        try:
            while not self._is_over.is_set():
                message = self._consumer.poll(_POLL_S)
                if message is not None:
                    self._see(message)
        except Exception as error:  # noqa: BLE001 - the error is raised in the thread that uses the watcher
            with self._moved:
                self._error = error
                self._moved.notify_all()

    def _see(self, message: Message) -> None:
        error = message.error()
        partition, offset = message.partition() or 0, message.offset() or 0
        if error is None:
            headers: Any = tuple(message.headers() or ())  # a list of pairs, although its declaration says otherwise
            self.observed.append(
                Observation(Position(partition, offset), message.key(), message.value(), headers, time.monotonic())
            )
            offset += 1
        elif error.code() in _LOST:
            raise AssertionError(f"{self._topic}/{partition} lost records before they were read: {error.str()}")
        elif error.code() != _AT_END:
            return  # a broker has left the cluster, and librdkafka reconnects on its own
        with self._moved:
            self._reached[partition] = max(self._reached[partition], offset)
            self._moved.notify_all()

    def _sample(self, statistics: str) -> None:
        now = time.monotonic()
        partitions = json.loads(statistics).get("topics", {}).get(self._topic, {}).get("partitions", {})
        self.stable_offsets += [
            StableOffset(now, int(number), facts["ls_offset"], facts["hi_offset"])
            for number, facts in partitions.items()
            if int(number) >= 0 and facts["hi_offset"] >= 0
        ]


def _partitions_of(consumer: Consumer, topic: str) -> list[int]:
    """Return the topic's partitions. If the topic is new, wait until the broker has its metadata.

    Without this metadata, the topic seems to have no partitions.
    """
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S
    while time.monotonic() < deadline:
        found = consumer.list_topics(topic, timeout=_ANSWER_TIMEOUT_S).topics[topic].partitions
        if found and all(partition.leader >= 0 for partition in found.values()):
            return sorted(found)
        time.sleep(_POLL_S)
    raise AssertionError(f"{topic} has partitions without a leader")
