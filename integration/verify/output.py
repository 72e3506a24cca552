"""Read the records of the output topics, and find duplicates and gaps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.errors import ConfigurationError
from twopc.integration.verify.findings import Finding, Kind
from twopc.integration.verify.sources import ranges
from twopc.integration.verify.spill import Spill
from twopc.integration.verify.tail import Tail, why_deleted, why_maybe_deleted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from confluent_kafka import Message

    from twopc.integration.verify.cluster import Cluster
    from twopc.integration.verify.expressions import Expression
    from twopc.integration.verify.spill import Place


#: The message if verify has no topic to read.
NO_TOPIC: Final = "no retained decision names an output topic, so no record was read. Pass the topic with --topic"


@dataclass(frozen=True)
class RecordChecks:
    """The checks for each record."""

    key: Expression | None = None  #: identifies a record, and must be unique in its topic; None: not checked
    sequence: Expression | None = (
        None  #: yields numbers with no gaps between the smallest and the largest; None: not checked
    )
    by: Expression | None = None  #: records with an equal value form a sequence; None: all records of a topic form one


class Output:
    """The part of the output topics that has been read, and the checks of its records.

    Attributes:
        topics: the part of each topic that has been read, and the part that has not been read yet.
    """

    def __init__(self, record_checks: RecordChecks, directory: Path) -> None:
        """Check records, with temporary files in ``directory``."""
        self.topics: dict[str, Tail] = {}
        self._checks = record_checks
        self._keys = Spill(directory / "keys")
        self._numbers = Spill(directory / "numbers")
        self._unidentified = Counter[str]()

    @property
    def records(self) -> dict[str, int]:
        """The number of records that have been read, by topic."""
        return {topic: tail.records for topic, tail in self.topics.items()}

    def update_bounds(self, cluster: Cluster, topics: frozenset[str]) -> None:
        """Fetch the topics' current end offsets. :meth:`read_new` reads up to these offsets.

        Raises:
            ConfigurationError: a topic does not exist.
        """
        for topic in sorted(topics):
            bounds = cluster.bounds(topic)
            if bounds is None:
                raise ConfigurationError(
                    f"topic {topic} does not exist at {cluster.sink.bootstrap_servers}. Check --topic, or omit the option"
                )
            self.topics.setdefault(topic, Tail()).update(bounds)

    def unread(self) -> int:
        """The number of offsets that have not been read yet. Some offsets contain no record."""
        return sum(tail.unread for tail in self.topics.values())

    def read_new(self, cluster: Cluster, on_progress: Callable[[int], object]) -> None:
        """Read up to the end offsets. Call ``on_progress`` with the number of records after each fetch.

        Raises:
            TwoPhaseCommitError: some records could not be read. The next call starts with these records.
        """
        for index, (topic, tail) in enumerate(self.topics.items()):
            for messages in tail.read_new(cluster, topic):
                self._add_keys(index, topic, messages)
                self._add_numbers(index, topic, messages)
                on_progress(len(messages))

    def _add_keys(self, index: int, topic: str, messages: list[Message]) -> None:
        key, add, unidentified = self._checks.key, self._keys.add, 0
        if key is None:
            return
        for message in messages:
            identity = key.bytes_of(message)
            if identity is None:
                unidentified += 1
            else:
                add(identity, index, message.partition() or 0, message.offset() or 0)
        self._unidentified[f"{topic}, --key {key.text}"] += unidentified

    def _add_numbers(self, index: int, topic: str, messages: list[Message]) -> None:
        sequence, by, add, unidentified = self._checks.sequence, self._checks.by, self._numbers.add, 0
        if sequence is None:
            return
        for message in messages:
            number = sequence.number_of(message)
            group = b"" if by is None else by.bytes_of(message)
            if number is None or group is None:
                unidentified += 1
            else:
                add(group, index, message.partition() or 0, message.offset() or 0, number)
        self._unidentified[f"{topic}, --sequence {sequence.text}"] += unidentified

    def check_records(
        self, cluster: Cluster, *, is_quiescent: bool, has_rows: bool = True, abandoned: Collection[int] = ()
    ) -> Iterator[Finding]:
        """Find duplicates, gaps, and records that could not be checked.

        Args:
            cluster: knows which topics are compacted.
            is_quiescent: whether every decided transaction was visible or abandoned, and no transaction was decided while the
                end offsets were read. If not, a number may only seem to be missing.
            has_rows: whether the sink may have written a row.
            abandoned: the batches with abandoned transactions that are not visible. Their numbers may be missing.

        Raises:
            TwoPhaseCommitError: the topics' settings could not be read.
        """
        asked = {"--key": self._checks.key, "--sequence": self._checks.sequence}
        for option, expression in asked.items():
            if expression is not None and not self.topics and has_rows:
                yield Finding(Kind.NOT_COMPARED, f"{option} {expression.text}", NO_TOPIC)
        for where, unidentified in self._unidentified.items():
            if unidentified:
                named = counted(unidentified, "record was", "records were")
                text = f"{named} not checked, because the expression yields no value"
                yield Finding(Kind.UNIDENTIFIED, where, text)
        count, duplicates = self._keys.duplicates()
        if count:
            named = "; ".join(f"{self._at(one)} and {self._at(other)}" for one, other in duplicates)
            yield Finding(Kind.DUPLICATES, ", ".join(self.topics), f"{count:,} duplicates, such as {named}")
        count, gaps = self._numbers.gaps()
        if count and self._checks.sequence is not None:
            named = "; ".join(f"{low} to {high} at {self._at(place)}" for low, high, place in gaps)
            where = f"--sequence {self._checks.sequence.text}"
            text = f"{counted(count, 'number is', 'numbers are')} missing, such as {named}"
            if reason := why_deleted(cluster, self.topics) or why_maybe_deleted(cluster, self.topics):
                yield Finding(Kind.NOT_COMPARED, where, f"{text}, but {reason}")
            elif not is_quiescent or any(tail.bounds.held_back for tail in self.topics.values()):
                reason = "a batch is being written, or decided transactions are not proven visible"
                yield Finding(Kind.NOT_COMPARED, where, f"{text}, but {reason}")
            else:
                if batches := sorted({*abandoned}):
                    text += f". Rows that were abandoned (batches {ranges(batches)}) may be among them"
                yield Finding(Kind.SEQUENCE_GAPS, where, text)

    def _at(self, place: Place) -> str:
        return f"{list(self.topics)[place.topic]}[{place.partition}]@{place.offset}"
