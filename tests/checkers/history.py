"""What a history is made of. Checkers are pure functions over lists of these, so that a bad history can be made by hand."""

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
        checker: who says so.
        what: the broken promise, in one sentence.
        evidence: what shows it.
    """

    checker: str
    what: str
    evidence: tuple[Any, ...] = ()


class Position(NamedTuple):
    """Where a record is in a topic."""

    partition: int
    offset: int


class Row(NamedTuple):
    """What a source record should be in the output."""

    key: bytes | None
    value: bytes | None


class Producer(NamedTuple):
    """Whose records these are. One transaction lives at a producer's epoch (rule 5), so this names one, too."""

    producer_id: int
    epoch: int


@dataclass(frozen=True)
class Observation:
    """A record that a reader saw under ``read_committed``.

    Attributes:
        at_s: when, by the watcher's monotonic clock.
    """

    position: Position
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...] = ()
    at_s: float = 0.0


class Kind(Enum):
    """What an entry of a log is."""

    ROW = "row"
    COMMIT = "commit marker"
    ABORT = "abort marker"


@dataclass(frozen=True)
class LogEntry:
    """What a partition holds at an offset, visible or not. By offset in each partition."""

    position: Position
    producer: Producer
    kind: Kind = Kind.ROW


@dataclass(frozen=True)
class StableOffset:
    """How far readers could get at a moment.

    Attributes:
        at_s: the moment, by the watcher's monotonic clock.
        stable: the last stable offset.
        end: the high watermark; what lies between is held back by open transactions.
    """

    at_s: float
    partition: int
    stable: int
    end: int


@dataclass(frozen=True)
class Decided:
    """A handle that the ledger's decisions name: the last word for its task, repairs included."""

    uuid: str
    producer: Producer
    rows: int


#: The record of the source that an output record comes from: a plan under test writes it into each. ValueError if it has none.
SourceOf = Callable[[Observation], Position]


def source_in_value(observation: Observation) -> Position:
    """For values that begin with ``<partition>:<offset>``, ended by a space or nothing.

    Raises:
        ValueError: the value does not.
    """
    partition, _, offset = (observation.value or b"").partition(b" ")[0].partition(b":")
    return Position(int(partition), int(offset))


def with_sources(
    observed: Iterable[Observation], source_of: SourceOf
) -> tuple[list[tuple[Position, Observation]], list[Observation]]:
    """Each record with the source record that it comes from; and those that name none."""
    named, others = [], []
    for observation in observed:
        try:
            named.append((source_of(observation), observation))
        except ValueError:
            others.append(observation)
    return named, others


def fates(log: Iterable[LogEntry]) -> Mapping[Position, Kind | None]:
    """For each row the marker that ends its transaction in its partition; None while it is open."""
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
