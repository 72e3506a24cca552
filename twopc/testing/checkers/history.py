"""The parts of a history. Checkers take lists of these parts, so a test can easily make up a bad history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Violation:
    """A promise that a history breaks.

    Attributes:
        checker: the checker that found the violation.
        what: the broken promise, in a few words.
        evidence: the rows, offsets or transactions that show the violation.
    """

    checker: str
    what: str
    evidence: tuple[Any, ...] = ()


class Position(NamedTuple):
    """A record's place in a topic."""

    partition: int
    offset: int


class Row(NamedTuple):
    """The expected output for a source record."""

    key: bytes | None
    value: bytes | None


class Producer(NamedTuple):
    """The writer of a record.

    Each producer epoch is used for only one transaction (rule 5), so a producer id and epoch also identify a transaction.
    """

    producer_id: int
    epoch: int


@dataclass(frozen=True)
class Observation:
    """A record that a reader saw under ``read_committed``.

    Attributes:
        at_s: when the reader saw the record, in seconds on the watcher's monotonic clock.
    """

    position: Position
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...] = ()
    at_s: float = 0.0


class Kind(Enum):
    """The kind of a log entry."""

    ROW = "row"
    COMMIT = "commit marker"
    ABORT = "abort marker"


@dataclass(frozen=True)
class LogEntry:
    """The entry at one offset of a partition, visible or not."""

    position: Position
    producer: Producer
    kind: Kind = Kind.ROW


@dataclass(frozen=True)
class StableOffset:
    """The offset up to which readers could read at a given moment.

    Attributes:
        at_s: the time of that moment, in seconds on the watcher's monotonic clock.
        stable: the last stable offset.
        end: the high watermark. Open transactions hold back the records between ``stable`` and ``end``.
    """

    at_s: float
    partition: int
    stable: int
    end: int


@dataclass(frozen=True)
class Decided:
    """The handle that the ledger's decisions, including repairs, contain for a task."""

    uuid: str
    producer: Producer
    rows: int


#: Returns the source record that the query under test has written into an output record. Raises ValueError if there is none.
SourceOf = Callable[[Observation], Position]


def source_in_value(observation: Observation) -> Position:
    """Return the source record for a value that is ``<partition>:<offset>``, alone or followed by a space and more text.

    Raises:
        ValueError: the value does not have this form.
    """
    partition, _, offset = (observation.value or b"").partition(b" ")[0].partition(b":")
    return Position(int(partition), int(offset))


def with_sources(
    observed: Iterable[Observation], source_of: SourceOf
) -> tuple[list[tuple[Position, Observation]], list[Observation]]:
    """Pair each record with its source record; return these pairs, and the records without a source record."""
    named, others = [], []
    for observation in observed:
        try:
            named.append((source_of(observation), observation))
        except ValueError:
            others.append(observation)
    return named, others


def fates(log: Iterable[LogEntry]) -> Mapping[Position, Kind | None]:
    """Return the marker that ends each row's transaction in the row's partition; None if the transaction is open."""
    ended: dict[Position, Kind | None] = {}
    waiting: dict[tuple[int, Producer], list[Position]] = defaultdict(list)
    for entry in sorted(log, key=lambda entry: entry.position):
        of_producer = waiting[entry.position.partition, entry.producer]
        if entry.kind is Kind.ROW:
            of_producer.append(entry.position)
            ended[entry.position] = None
        else:
            ended.update(dict.fromkeys(of_producer, entry.kind))
            of_producer.clear()
    return ended
