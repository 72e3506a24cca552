"""The output topics: count the records that readers see, find duplicates and gaps."""

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
class RecordChecks:
    """What to check of each record.

    Attributes:
        key: identifies a record; must be unique in its topic. None: not checked.
        sequence: a number; none may be missing between the smallest and the largest. None: not checked.
        by: records with an equal value here form one sequence; None: all records of a topic do.
    """

    key: Expression | None = None
    sequence: Expression | None = None
    by: Expression | None = None


@dataclass(frozen=True)
class Comparison:
    """How many records to expect. Rows are counted by the set of topics that their transaction wrote to.

    Attributes:
        proven: rows of transactions proven visible, the least number of records.
        decided: rows of all decided transactions, the largest number from this sink.
        incomplete: why this is not everything the sink has ever written; None if it is.
        sole_writer: whether nothing else writes to the topics.
    """

    proven: Mapping[frozenset[str], int]
    decided: Mapping[frozenset[str], int]
    incomplete: str | None
    sole_writer: bool

    def groups(self, topics: Iterable[str]) -> list[frozenset[str]]:
        """Sets of topics that must be counted together, because transactions wrote to several of them."""
        groups: list[frozenset[str]] = []
        for one in [*self.decided, *(frozenset({topic}) for topic in topics)]:
            joined = one.union(*(group for group in groups if group & one))
            groups = [group for group in groups if not group & one] + [joined]
        return sorted((group for group in groups if group), key=sorted)


@dataclass
class Output:
    """The topics, as far as they have been read."""

    record_checks: RecordChecks
    directory: Path
    records: dict[str, int] = field(default_factory=dict)
    bounds: dict[str, Bounds] = field(default_factory=dict)
    unidentified: dict[str, int] = field(default_factory=dict)
    _first: dict[str, Bounds] = field(default_factory=dict)
    _positions: dict[str, dict[int, int]] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)  # topics with records that were deleted before they were read

    def __post_init__(self) -> None:
        """Create the files for digests."""
        self._keys = Spill(self.directory / "keys") if self.record_checks.key else None
        self._numbers = Spill(self.directory / "numbers") if self.record_checks.sequence else None

    def update_bounds(self, cluster: Cluster, topics: frozenset[str]) -> None:
        """Get the current ends of the topics; :meth:`read_new` reads up to them.

        Raises:
            ConfigurationError: a topic does not exist.
        """
        for topic in sorted(topics):
            bounds = cluster.bounds(topic)
            if bounds is None:
                raise ConfigurationError(
                    f"there is no topic {topic} at {cluster.sink.bootstrap_servers}: correct --topic, or omit it"
                )
            self.bounds[topic] = bounds
            self._first.setdefault(topic, bounds)
            positions = self._positions.setdefault(topic, {})
            for partition, start in bounds.starts.items():
                if positions.setdefault(partition, start) < start:
                    positions[partition] = start
                    self._deleted.add(topic)
            self.records.setdefault(topic, 0)

    def unread(self) -> int:
        """Number of offsets still to read; some hold no record."""
        return sum(
            max(0, end - self._positions[topic][partition])
            for topic, bounds in self.bounds.items()
            for partition, end in bounds.stable.items()
        )

    def read_new(self, cluster: Cluster, on_progress: Callable[[int], object]) -> None:
        """Read up to the ends. Calls ``on_progress`` with the number of records of each list it reads.

        Raises:
            TwoPhaseCommitError: not everything could be read; the next call resumes.
        """
        for index, (topic, bounds) in enumerate(self.bounds.items()):
            positions = self._positions[topic]
            timeout_ms = cluster.sink.timeout_ms
            for messages in read_topic(cluster.connection, topic, positions, bounds.stable, timeout_ms=timeout_ms):
                self.records[topic] += len(messages)
                self._inspect(index, topic, messages)
                # Now, not at the end: after an error the next call resumes here and counts nothing twice.
                positions.update({message.partition() or 0: (message.offset() or 0) + 1 for message in messages})
                on_progress(len(messages))
            positions.update({p: max(end, positions[p]) for p, end in bounds.stable.items()})

    def _inspect(self, index: int, topic: str, messages: list[Message]) -> None:
        if self._keys is not None and self.record_checks.key is not None:
            of, add, nothing = self.record_checks.key.bytes_of, self._keys.add, 0
            for message in messages:
                identity = of(message)
                if identity is None:
                    nothing += 1
                else:
                    add(identity, index, message.partition() or 0, message.offset() or 0)
            self._count_unidentified(f"{topic}, --key {self.record_checks.key.text}", nothing)
        if self._numbers is not None and self.record_checks.sequence is not None:
            by, nothing = self.record_checks.by, 0
            for message in messages:
                number = self.record_checks.sequence.number_of(message)
                group = b"" if by is None else by.bytes_of(message)
                if number is None or group is None:
                    nothing += 1
                else:
                    self._numbers.add(group, index, message.partition() or 0, message.offset() or 0, number)
            self._count_unidentified(f"{topic}, --sequence {self.record_checks.sequence.text}", nothing)

    def _count_unidentified(self, where: str, count: int) -> None:
        if count:
            self.unidentified[where] = self.unidentified.get(where, 0) + count

    def check_records(self, *, is_quiescent: bool) -> Iterator[Finding]:
        """Find duplicates, gaps, and records that could not be checked.

        Args:
            is_quiescent: whether every decided transaction was visible and none was decided while the ends were read. If
                not, a number may only seem to be missing.
        """
        for where, count in self.unidentified.items():
            yield Finding(Kind.UNIDENTIFIED, where, f"{count:,} records have no such value: they were not checked")
        if self._keys is not None and (found := self._keys.duplicates()).duplicated:
            named = "; ".join(f"{self._at(one)} and {self._at(other)}" for one, other in found.examples)
            yield Finding(
                Kind.DUPLICATES,
                ", ".join(self.bounds),
                f"{found.duplicated:,} duplicates, such as {named}",
            )
        if (
            self._numbers is not None
            and self.record_checks.sequence is not None
            and (gaps := self._numbers.gaps()).missing
        ):
            named = "; ".join(f"{low} to {high} at {self._at(place)}" for low, high, place in gaps.examples)
            where = f"--sequence {self.record_checks.sequence.text}"
            text = f"{gaps.missing:,} numbers are missing, such as {named}"
            if self._deleted:
                yield Finding(Kind.NOT_COMPARED, where, f"{text}; but records were deleted before they were read")
            elif not is_quiescent or any(bounds.held_back for bounds in self.bounds.values()):
                yield Finding(Kind.NOT_COMPARED, where, f"{text}; but a batch is being written or committed")
            else:
                yield Finding(Kind.SEQUENCE_GAPS, where, text)

    def check_count(self, cluster: Cluster, expected: Comparison) -> Iterator[Finding]:
        """Compare the number of records with the decided rows, topic by topic, or report why that would prove nothing."""
        for topic, bounds in self.bounds.items():
            if bounds.held_back:
                yield Finding(
                    Kind.HELD_BACK,
                    topic,
                    f"{bounds.held_back:,} offsets are behind open transactions: readers cannot pass them",
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
            text = f"the number of records ({count:,}, for {decided:,} decided rows): {reason}"
            yield Finding(Kind.NOT_COMPARED, where, text)
        elif count < proven:
            yield Finding(
                Kind.RECORDS_MISSING, where, f"{count:,} records for {proven:,} committed rows: records are lost"
            )
        elif count > decided:
            kind = Kind.RECORDS_UNDECIDED if expected.sole_writer else Kind.RECORDS_EXTRA
            yield Finding(
                kind,
                where,
                f"{count:,} records for {decided:,} decided rows: another writer, or duplicates; --key finds duplicates",
            )

    def _why_not(self, cluster: Cluster, group: frozenset[str], read: frozenset[str]) -> str | None:
        if others := sorted(group - read):
            return f"the same transactions also wrote to {', '.join(others)}"
        deleted = [topic for topic in sorted(read) if topic in self._deleted or any(self._first[topic].starts.values())]
        if dropped := deleted or [topic for topic in sorted(read) if cluster.is_compacted(topic)]:
            return f"records were deleted from {', '.join(dropped)} (retention, compaction)"
        if any(self.bounds[topic].held_back for topic in read):
            return "some committed records are not readable yet"
        return None

    def _at(self, place: Place) -> str:
        return f"{list(self.bounds)[place.topic]}[{place.partition}]@{place.offset}"
