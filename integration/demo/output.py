"""The output of a query as any ``read_committed`` consumer sees it, without knowing how it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from twopc import TwoPhaseCommitError
from twopc.integration.services import ServiceError
from twopc.integration.services.server import wait_until
from twopc.integration.topic_reader import read_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

KEYS: Final = 1000
"""Number of keys of the demo's records. Record n has the value n and the key ``key-<n % KEYS>``."""

_TIMEOUT_S: Final = 30
_PROGRESS_EVERY: Final = 10_000
_READABLE_TIMEOUT_S: Final = 5.0


class Output:
    """The topic that a query writes to."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
        # librdkafka would log to the console; everything that matters raises an error.
        self._connection: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(self._connection)

    def written(self) -> int:
        """Return the number of offsets, whether readers can reach them or not."""
        return sum(self._ends(IsolationLevel.READ_UNCOMMITTED).values())

    def unfinished(self) -> int:
        """Wait for commits to reach every partition; return the number of offsets that readers cannot reach."""
        wait_until(lambda: not self._hidden(), _READABLE_TIMEOUT_S)
        return self._hidden()

    def numbers(self, rows: int, on_progress: Callable[[int], object] = lambda _: None) -> Iterator[int]:
        """Yield the number of every readable record.

        Args:
            rows: the number of records in the source.
            on_progress: called repeatedly with the number of records read so far.

        Raises:
            ServiceError: the broker does not answer, or the output has a record that the source does not have.
        """
        ends = self._ends(IsolationLevel.READ_COMMITTED)
        starts = dict.fromkeys(ends, 0)
        count = 0
        try:
            for messages in read_topic(self._connection, self._topic, starts, ends, timeout_ms=_TIMEOUT_S * 1000):
                for message in messages:
                    yield _number(message, rows)
                count += len(messages)
                on_progress(count)
        except TwoPhaseCommitError as error:
            raise ServiceError(str(error)) from error

    def _hidden(self) -> int:
        return self.written() - sum(self._ends(IsolationLevel.READ_COMMITTED).values())

    def _ends(self, isolation_level: IsolationLevel) -> dict[int, int]:
        """Return the end offset of each partition, or its last stable offset."""
        futures = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions},
            request_timeout=_TIMEOUT_S,
            isolation_level=isolation_level,
        )
        return {where.partition: future.result().offset for where, future in futures.items()}


def _number(message: Message, rows: int) -> int:
    """Return the number of a record, after comparing key and value with the source's."""
    key, value = message.key(), message.value() or b""
    number = int(value) if value.isdigit() else -1
    if not 0 <= number < rows or (key, value) != (b"key-%d" % (number % KEYS), b"%d" % number):
        raise ServiceError(
            f"The output has a record that the source does not have: {message.topic()}[{message.partition()}]@"
            f"{message.offset()}, key {key!r}, value {value!r}"
        )
    return number
