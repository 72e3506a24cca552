"""The output topics: how many records readers see, against what was decided; doubles and gaps among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from integration.topic_reader import read_topic
from integration.verify.findings import Finding, Kind
from integration.verify.spill import Spill
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from confluent_kafka import Message

    from integration.verify.cluster import Bounds, Cluster
    from integration.verify.expressions import Expression
    from integration.verify.spill import Place


@dataclass(frozen=True)
class Questions:
    """What is asked of the records.

    Attributes:
        key: identifies a record; none may come twice in a topic. None: not asked.
        sequence: a record's number; none may be missing between the smallest and the largest. None: not asked.
        by: the records that share a sequence; None: all of a topic.
    """

    key: Expression | None = None
    sequence: Expression | None = None
    by: Expression | None = None


@dataclass(frozen=True)
class Comparison:
    """How many records there can be. Rows are counted by the set of topics that their transaction wrote to.

    Attributes:
        proven: rows of transactions that are proven visible: there must be as many records.
        decided: rows of every decided transaction: of the sink there cannot be more.
        incomplete: why these are not all that the sink has ever written; None where they are.
        sole_writer: whether nobody else writes to the topics.
    """

    proven: Mapping[frozenset[str], int]
    decided: Mapping[frozenset[str], int]
    incomplete: str | None
    sole_writer: bool

    def groups(self, topics: Iterable[str]) -> list[frozenset[str]]:
        """Topics whose rows can only be counted together, as transactions wrote to several of them."""
        groups: list[frozenset[str]] = []
        for one in [*self.decided, *(frozenset({topic}) for topic in topics)]:
            joined = one.union(*(group for group in groups if group & one))
            groups = [group for group in groups if not group & one] + [joined]
        return sorted((group for group in groups if group), key=sorted)


@dataclass
class Output:
    """What was read of the topics so far."""

    questions: Questions
    directory: Path
    records: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    unidentified: dict[str, int] = field(default_factory=dict)
    _first: dict[str, Bounds] = field(default_factory=dict)
    _positions: dict[str, dict[int, int]] = field(default_factory=dict)
    _unseen: set[str] = field(default_factory=set)  # topics of which records were deleted before they were read

    def __post_init__(self) -> None:
        """Make room for the digests that are wanted."""
        self._keys = Spill(self.directory / "keys") if self.questions.key else None
        self._numbers = Spill(self.directory / "numbers") if self.questions.sequence else None

    def look(self, cluster: Cluster, topics: frozenset[str]) -> None:
        """Note where the topics end now: up to there :meth:`read_on` reads.

        Raises:
            ConfigurationError: there is no such topic.
        """
        for topic in sorted(topics):
            bounds = cluster.bounds(topic)
            if bounds is None:
                raise ConfigurationError(
                    f"there is no topic {topic} at {cluster.sink.bootstrap_servers}: correct --topic, or leave it out"
                )
            self.bounds[topic] = bounds
            self._first.setdefault(topic, bounds)
            positions = self._positions.setdefault(topic, {})
            for partition, start in bounds.starts.items():
                if positions.setdefault(partition, start) < start:
                    positions[partition] = start
                    self._unseen.add(topic)
            self.records.setdefault(topic, 0)

    def unread(self) -> int:
        """Offsets still to be read; some of them hold no record."""
        return sum(
            max(0, end - self._positions[topic][partition])
            for topic, bounds in self.bounds.items()
            for partition, end in bounds.stable.items()
        )

    def read_on(self, cluster: Cluster, on_progress: Callable[[int], object]) -> None:
        """Read what was noted. ``on_progress`` is given a number of records, again and again.

        Raises:
            TwoPhaseCommitError: it could not all be read; called again, it goes on.
        """
        for index, (topic, bounds) in enumerate(self.bounds.items()):
            positions = self._positions[topic]
            timeout_ms = cluster.sink.timeout_ms
            for messages in read_topic(cluster.connection, topic, positions, bounds.stable, timeout_ms=timeout_ms):
                self.records[topic] += len(messages)
                self._note(index, topic, messages)
                # At once: after an error the next look goes on here, and counts nothing twice.
                positions.update({message.partition() or 0: (message.offset() or 0) + 1 for message in messages})
                on_progress(len(messages))
            positions.update({p: max(end, positions[p]) for p, end in bounds.stable.items()})

    def _note(self, index: int, topic: str, messages: list[Message]) -> None:
        if self._keys is not None and self.questions.key is not None:
            of, add, nothing = self.questions.key.bytes_of, self._keys.add, 0
            for message in messages:
                identity = of(message)
                if identity is None:
                    nothing += 1
                else:
                    add(identity, index, message.partition() or 0, message.offset() or 0)
            self._miss(f"{topic}, --key {self.questions.key.text}", nothing)
        if self._numbers is not None and self.questions.sequence is not None:
            by, nothing = self.questions.by, 0
            for message in messages:
                number = self.questions.sequence.number_of(message)
                group = b"" if by is None else by.bytes_of(message)
                if number is None or group is None:
                    nothing += 1
                else:
                    self._numbers.add(group, index, message.partition() or 0, message.offset() or 0, number)
            self._miss(f"{topic}, --sequence {self.questions.sequence.text}", nothing)

    def _miss(self, where: str, count: int) -> None:
        if count:
            self.unidentified[where] = self.unidentified.get(where, 0) + count

    def check_records(self, *, is_settled: bool) -> Iterator[Finding]:
        """Doubles, gaps, and what could not be told.

        Args:
            is_settled: whether nothing was decided while the topics' ends were asked for, and all that was before is visible:
                else a number may be missing because its transaction, or its partition's end, came later.
        """
        for where, count in self.unidentified.items():
            yield Finding(Kind.UNIDENTIFIED, where, f"{count:,} records have nothing there: they were not compared")
        if self._keys is not None and (doubles := self._keys.doubles()).doubled:
            named = "; ".join(f"{self._at(one)} and {self._at(other)}" for one, other in doubles.examples)
            yield Finding(
                Kind.DUPLICATES,
                ", ".join(self.bounds),
                f"{doubles.doubled:,} records were there before, such as {named}",
            )
        if self._numbers is not None and self.questions.sequence is not None and (gaps := self._numbers.gaps()).missing:
            named = "; ".join(f"{low} to {high} at {self._at(place)}" for low, high, place in gaps.examples)
            where = f"--sequence {self.questions.sequence.text}"
            text = f"{gaps.missing:,} numbers are missing, such as {named}"
            if self._unseen:
                yield Finding(Kind.NOT_COMPARED, where, f"{text}: records were deleted before they were read")
            elif not is_settled or any(bounds.held_back for bounds in self.bounds.values()):
                yield Finding(Kind.NOT_COMPARED, where, f"{text}: a batch is being written or committed")
            else:
                yield Finding(Kind.SEQUENCE_GAPS, where, text)

    def check_count(self, cluster: Cluster, expected: Comparison) -> Iterator[Finding]:
        """The number of records against what was decided, topic by topic; says why where that would prove nothing."""
        for topic, bounds in self.bounds.items():
            if bounds.held_back:
                yield Finding(
                    Kind.HELD_BACK,
                    topic,
                    f"{bounds.held_back:,} offsets are behind open transactions: readers wait there",
                )
        for group in expected.groups(self.bounds):
            if read := group & self.bounds.keys():
                yield from self._check_group(cluster, expected, group, read)

    def _check_group(
        self, cluster: Cluster, expected: Comparison, group: frozenset[str], read: frozenset[str]
    ) -> Iterator[Finding]:
        where, count = ", ".join(sorted(read)), sum(self.records[topic] for topic in read)
        proven, decided = (
            sum(rows for topics, rows in counted.items() if topics & group)
            for counted in (expected.proven, expected.decided)
        )
        if reason := expected.incomplete or self._why_not(cluster, group, read):
            text = f"the number of records ({count:,}, with {decided:,} decided rows): {reason}"
            yield Finding(Kind.NOT_COMPARED, where, text)
        elif count < proven:
            yield Finding(
                Kind.RECORDS_MISSING, where, f"{count:,} records, and {proven:,} rows are committed: some are lost"
            )
        elif count > decided:
            kind = Kind.RECORDS_UNDECIDED if expected.sole_writer else Kind.RECORDS_EXTRA
            yield Finding(
                kind,
                where,
                f"{count:,} records, and {decided:,} rows were decided: somebody else has written, too, or rows are "
                "doubled; --key tells which",
            )

    def _why_not(self, cluster: Cluster, group: frozenset[str], read: frozenset[str]) -> str | None:
        if others := sorted(group - read):
            return f"the same transactions have written to {', '.join(others)}, too"
        deleted = [topic for topic in sorted(read) if topic in self._unseen or any(self._first[topic].starts.values())]
        if dropped := deleted or [topic for topic in sorted(read) if cluster.is_compacted(topic)]:
            return f"{', '.join(dropped)} has dropped records (retention, compaction)"
        if any(self.bounds[topic].held_back for topic in read):
            return "not all that was committed is readable yet"
        return None

    def _at(self, place: Place) -> str:
        return f"{list(self.bounds)[place.topic]}[{place.partition}]@{place.offset}"
