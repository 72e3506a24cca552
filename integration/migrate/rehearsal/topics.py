"""Write to a rehearsal's input topic, and read its output topic as any ``read_committed`` reader does."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from twopc.errors import TwoPhaseCommitError
from twopc.integration.services import ServiceError
from twopc.integration.services.server import wait_until
from twopc.integration.topic_reader import read_topic
from twopc.sinks.kafka.reader import COMMITTED
from twopc.testing.kill_loop import KafkaTopic
from twopc.testing.kill_loop.records import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from twopc.testing.kill_loop.records import Reader

_TIMEOUT_S: Final = 60
_POLL_S: Final = 0.1
_NOWHERE: Final = -1


class Record(NamedTuple):
    """A record in the output."""

    partition: int
    offset: int
    key: str
    number: int


@dataclass(frozen=True)
class Output:
    """A topic on brokers of any version, as a reader sees it.

    Attributes:
        servers: the addresses of the topic's cluster.
        topic: the topic name.
        partitions: the number of partitions in the topic.
    """

    servers: str
    topic: str
    partitions: int

    def create(self) -> None:
        """Create the topic with one replica, because each cluster has only one broker.

        Wait until the broker has received the topic's metadata.

        Raises:
            ServiceError: the topic did not appear in time.
        """
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        admin.create_topics([NewTopic(self.topic, self.partitions, 1)])[self.topic].result(_TIMEOUT_S)
        self._await_leaders(admin)

    def _await_leaders(self, client: AdminClient | Consumer) -> None:
        if not wait_until(lambda: _has_leaders(client, self.topic), _TIMEOUT_S):
            raise ServiceError(f"the topic {self.topic} did not appear on {self.servers} within {_TIMEOUT_S} s")

    def written(self) -> int:
        """Count the topic's offsets, including those that readers cannot reach yet."""
        return sum(self.ends("read_uncommitted").values())

    def held_back(self) -> int:
        """Count the offsets that readers cannot reach because transactions are open."""
        return self.written() - sum(self.ends().values())

    def ends(self, isolation_level: str = "read_committed") -> dict[int, int]:
        """For each partition, return the offset up to which readers can read.

        Raises:
            ServiceError: the topic does not exist.
        """
        with _consumer(self.servers, isolation_level) as consumer:
            self._await_leaders(consumer)  # a broker learns about its topics only some time after it has started
            found: dict[int, int] = {}
            if not wait_until(lambda: self._ask(consumer, found), _TIMEOUT_S):
                raise ServiceError(
                    f"{self.servers}: some partitions of {self.topic} still had no leader after {_TIMEOUT_S} s"
                )
            return found

    def _ask(self, consumer: Consumer, found: dict[int, int]) -> bool:
        """Look up the missing end offsets, and return whether all end offsets are known.

        The metadata may name a leader that is not ready yet.
        """
        for number in set(range(self.partitions)) - found.keys():
            try:
                found[number] = consumer.get_watermark_offsets(TopicPartition(self.topic, number), _TIMEOUT_S)[1]
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise
        return len(found) == self.partitions

    def records(self) -> list[Record]:
        """Return every readable record.

        Raises:
            ServiceError: the broker does not respond, or a record was never in the query's input.
        """
        connection = {"bootstrap.servers": self.servers, "log_level": 0}
        ends = self.ends()
        starts = dict.fromkeys(ends, 0)
        try:
            lists = list(read_topic(connection, self.topic, starts, ends, timeout_ms=_TIMEOUT_S * 1000))
        except TwoPhaseCommitError as error:
            raise ServiceError(str(error)) from error
        return [_record(message) for messages in lists for message in messages]


class LiveReader:
    """Continuously reads an output with ``read_committed``, in a thread, as an application does."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._seen: list[Record] = []
        self._error: BaseException | None = None
        self._ends: Mapping[int, int] | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def finish(self) -> list[Record]:
        """Wait until the reader reaches the end, and return every record that it has received, in order.

        Raises:
            ServiceError: the reader failed, or did not reach the end in time.
        """
        self._ends = self._output.ends()
        self._thread.join(_TIMEOUT_S)
        if self._error is not None:
            raise ServiceError(f"the reader of {self._output.topic} failed: {self._error}") from self._error
        if self._thread.is_alive():
            raise ServiceError(
                f"the reader of {self._output.topic} did not reach the topic's end within {_TIMEOUT_S} s"
            )
        return self._seen

    def close(self) -> None:
        """Stop the reader, even before it reaches the end."""
        self._ends = {}
        self._thread.join(_TIMEOUT_S)

    def _read(self) -> None:
        at = dict.fromkeys(range(self._output.partitions), 0)
        try:
            with _consumer(self._output.servers, "read_committed") as consumer:
                consumer.assign([TopicPartition(self._output.topic, number, 0) for number in at])
                while self._ends is None or any(at[number] < end for number, end in self._ends.items()):
                    message = consumer.poll(_POLL_S)
                    if message is None:
                        continue
                    error, offset = message.error(), message.offset() or 0
                    if error is None:
                        self._seen.append(_record(message))
                        at[message.partition() or 0] = offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
                        # A transaction's last offset is an end marker, not a record.
                        at[message.partition() or 0] = offset
        except Exception as error:  # noqa: BLE001 - the main thread raises this error
            self._error = error


@dataclass
class OldTopic(KafkaTopic):
    """A source for the kill loop, on brokers of any version. The producer is not idempotent, and the topic already exists."""

    #: One request at a time, so that a retry cannot change the order of requests.
    producer = {"acks": "all", "max.in.flight.requests.per.connection": 1}  # noqa: RUF012 - a ClassVar of the base class
    _created: bool = field(default=True, repr=False)


@dataclass
class Continued:
    """A source whose numbers continue where the previous step ended.

    Attributes:
        source: the source that receives the records.
        fed: the number of records that the source has received in all steps.
    """

    source: OldTopic
    fed: int = 0
    _first: int = field(default=0, repr=False)

    def next_step(self) -> None:
        """Begin a step. From now on, number 0 means the next unused number."""
        self._first = self.fed

    def feed(self, numbers: range) -> None:
        """See :class:`twopc.testing.kill_loop.Source`."""
        wanted = range(self._first + numbers.start, self._first + numbers.stop)
        self.source.feed(wanted)
        self.fed = wanted.stop

    def reader(self, batch_rows: int) -> Reader:
        """See :class:`twopc.testing.kill_loop.Source`."""
        return self.source.reader(batch_rows)


def numbers_of(records: Iterable[Record]) -> Counter[int]:
    """Count how often each number occurs in the records."""
    return Counter(record.number for record in records)


def moved_keys(records: Iterable[Record]) -> list[str]:
    """Return the keys that are in more than one partition."""
    where: dict[str, set[int]] = defaultdict(set)
    for record in records:
        where[record.key].add(record.partition)
    return sorted(key for key, partitions in where.items() if len(partitions) > 1)


def _has_leaders(client: AdminClient | Consumer, topic: str) -> bool:
    found = client.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
    return bool(found) and all(partition.leader > _NOWHERE for partition in found.values())


@contextlib.contextmanager
def _consumer(servers: str, isolation_level: str) -> Iterator[Consumer]:
    facts: dict[str, Any] = {"bootstrap.servers": servers, "isolation.level": isolation_level, "log_level": 0}
    consumer = Consumer({**COMMITTED, **facts})
    try:
        yield consumer
    finally:
        consumer.close()


def _record(message: Any) -> Record:
    key, value = message.key() or b"", message.value() or b""
    number = int(value) if value.isdigit() else _NOWHERE
    record = Record(message.partition(), message.offset(), key.decode(errors="replace"), number)
    if record.number == _NOWHERE or record.key != key_of(number):
        raise ServiceError(
            f"{message.topic()} contains a record that was never in the query's input: {key!r}, {value!r}"
        )
    return record
