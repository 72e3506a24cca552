"""The demo's judge: reads a topic as any consumer would (``read_committed``), and knows nothing of how it was written.

Memory is one byte a record, plus one number for each key in each partition.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from integration.demo.records import KEYS, Topics, record
from integration.services.errors import ServiceError
from integration.topic_reader import read_topic
from twopc.errors import TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

_PROGRESS_EVERY: Final = 10_000
_TIMEOUT_MS: Final = 30_000
_READABLE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a topic holds, against records 0 to ``rows_in - 1`` of which each should be there once.

    Attributes:
        rows_in: records of the source.
        rows_out: records readable in the output.
        lost: records of the source that are not readable.
        duplicated: readable records that were there before.
        out_of_order: readable records that come after a later one of the same key in the same partition.
        unfinished: offsets that an open transaction keeps from the readers.
    """

    rows_in: int
    rows_out: int
    lost: int
    duplicated: int
    out_of_order: int
    unfinished: int

    @property
    def is_exactly_once(self) -> bool:
        """Whether every record is there, once."""
        return not (self.lost or self.duplicated)


def verify(topics: Topics, on_progress: Callable[[int], object] = lambda _: None) -> Verdict:
    """Read the whole output and compare it with the source.

    Raises:
        ServiceError: the broker does not answer, or the output holds a record that the source never had.
    """
    rows_in = sum(topics.ends(topics.source).values())
    unfinished = _wait_for_readability(topics)
    seen = bytearray(rows_in)
    highest: dict[int, list[int]] = {}
    rows_out = duplicated = out_of_order = 0
    for message in _read(topics):
        partition, number = message.partition() or 0, _number(message, rows_in)
        rows_out += 1
        duplicated += seen[number]
        seen[number] = 1
        of_key = highest.setdefault(partition, [-1] * KEYS)
        key = number % KEYS
        # Within a key the records' own numbers rise as its sequence numbers do.
        out_of_order += number < of_key[key]
        of_key[key] = max(number, of_key[key])
        if rows_out % _PROGRESS_EVERY == 0:
            on_progress(rows_out)
    return Verdict(
        rows_in=rows_in,
        rows_out=rows_out,
        lost=seen.count(0),
        duplicated=duplicated,
        out_of_order=out_of_order,
        unfinished=unfinished,
    )


def _wait_for_readability(topics: Topics) -> int:
    """The offsets that readers cannot reach. A committed transaction ends in each partition a moment after its commit."""
    deadline = time.monotonic() + _READABLE_TIMEOUT_S
    while True:
        ends, readable = topics.ends(topics.output), topics.ends(topics.output, committed=True)
        unfinished = sum(ends.values()) - sum(readable.values())
        if not unfinished or time.monotonic() > deadline:
            return unfinished
        time.sleep(0.1)


def _number(message: Message, rows_in: int) -> int:
    """The number of a record; one that was changed on its way is as bad as one made up."""
    value = message.value() or b""
    head = value.partition(b",")[0]
    number = int(head) if head.isdigit() else -1
    if not 0 <= number < rows_in or record(number) != (message.key(), value):
        raise ServiceError(
            f"the output holds a record that the source never had: {message.topic()}[{message.partition()}]@"
            f"{message.offset()}, key {message.key()!r}, value {value!r}"
        )
    return number


def _read(topics: Topics) -> Iterator[Message]:
    """Every readable record up to the end of every partition."""
    ends = topics.ends(topics.output, committed=True)
    connection = {"bootstrap.servers": topics.bootstrap_servers}
    try:
        for messages in read_topic(connection, topics.output, dict.fromkeys(ends, 0), ends, timeout_ms=_TIMEOUT_MS):
            yield from messages
    except TwoPhaseCommitError as error:
        raise ServiceError(str(error)) from error
