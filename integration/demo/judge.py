"""Judge the output of a query: read it as any ``read_committed`` consumer would, knowing nothing of how it was written.

Takes one byte of memory per record, plus one number per key and partition.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from integration.demo.records import KEYS, Topics, record
from integration.services.errors import ServiceError
from integration.topic_reader import read_topic
from twopc import TwoPhaseCommitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

_PROGRESS_EVERY: Final = 10_000
_TIMEOUT_MS: Final = 30_000
_READABLE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The output, compared with the source: each record should be readable once.

    Attributes:
        rows_in: records in the source.
        rows_out: readable records in the output.
        lost: source records that are not readable.
        duplicated: readable records that repeat an earlier one.
        out_of_order: readable records after a later one of the same key, in the same partition.
        unfinished: offsets that open transactions keep from readers.
    """

    rows_in: int
    rows_out: int
    lost: int
    duplicated: int
    out_of_order: int
    unfinished: int

    @property
    def is_exactly_once(self) -> bool:
        """Whether every record is there once."""
        return not (self.lost or self.duplicated)


def judge(topics: Topics, on_progress: Callable[[int], object] = lambda _: None) -> Verdict:
    """Read the whole output and compare it with the source.

    Args:
        topics: source and output.
        on_progress: called repeatedly with the number of records read so far.

    Raises:
        ServiceError: the broker does not answer, or the output has a record that the source does not have.
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
        # Within a key, record numbers rise with the sequence numbers.
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
    """Return the number of offsets readers cannot reach, after waiting for commits to reach every partition."""
    deadline = time.monotonic() + _READABLE_TIMEOUT_S
    while True:
        ends, readable = topics.ends(topics.output), topics.ends(topics.output, committed=True)
        unfinished = sum(ends.values()) - sum(readable.values())
        if not unfinished or time.monotonic() > deadline:
            return unfinished
        time.sleep(0.1)


def _number(message: Message, rows_in: int) -> int:
    """Return the number of a record, after comparing key and value with what the source has."""
    value = message.value() or b""
    head = value.partition(b",")[0]
    number = int(head) if head.isdigit() else -1
    if not 0 <= number < rows_in or record(number) != (message.key(), value):
        raise ServiceError(
            f"The output has a record that the source does not have: {message.topic()}[{message.partition()}]@"
            f"{message.offset()}, key {message.key()!r}, value {value!r}"
        )
    return number


def _read(topics: Topics) -> Iterator[Message]:
    """Yield every readable record."""
    ends = topics.ends(topics.output, committed=True)
    connection = {"bootstrap.servers": topics.bootstrap_servers}
    try:
        for messages in read_topic(connection, topics.output, dict.fromkeys(ends, 0), ends, timeout_ms=_TIMEOUT_MS):
            yield from messages
    except TwoPhaseCommitError as error:
        raise ServiceError(str(error)) from error
