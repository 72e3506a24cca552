"""Count a sink's rows over all checks, because decisions may be truncated later.

Compare this count with the number of records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twopc.counted import counted
from twopc.integration.verify.findings import Finding, Kind
from twopc.integration.verify.output import NO_TOPIC
from twopc.integration.verify.strays import describe_strays
from twopc.integration.verify.tail import why_deleted, why_maybe_deleted
from twopc.integration.verify.transactions import topics_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from twopc.integration.verify.cluster import Cluster
    from twopc.integration.verify.history import Batch, BatchId, History
    from twopc.integration.verify.strays import Producers
    from twopc.integration.verify.tail import Tail
    from twopc.sinks.kafka import KafkaSink

    #: A decision records the number of rows per transaction, not per topic. So count rows by the transaction's set of topics,
    #: which usually has one topic.
    Rows = Counter[frozenset[str]]


@dataclass(frozen=True)
class Expected:
    """The number of records to expect."""

    proven: Mapping[frozenset[str], int]  #: rows of transactions proven visible: the minimum number of records
    #: rows of all decided transactions, except given-up transactions: the maximum number of this sink's records
    decided: Mapping[frozenset[str], int]
    incomplete: str | None  #: why these numbers do not include all rows that the sink has written; None if they do
    producers: Producers = ()  #: the producers of all decided transactions

    def groups(self, topics: Iterable[str]) -> list[frozenset[str]]:
        """Group topics that must be counted together because a transaction wrote to several of them."""
        groups: list[frozenset[str]] = []
        for one in [*self.decided, *(frozenset({topic}) for topic in topics)]:
            joined = one.union(*(group for group in groups if group & one))
            groups = [group for group in groups if not group & one] + [joined]
        return sorted((group for group in groups if group), key=sorted)


@dataclass
class Tally:
    """For each batch, the number of decided rows, and the number of rows that are proven to be visible."""

    _decided: dict[BatchId, Rows] = field(default_factory=dict)
    _proven: dict[BatchId, Rows] = field(default_factory=dict)
    _incomplete: str | None = None
    _producers: set[tuple[int, int]] = field(default_factory=set)

    def record(
        self,
        before: History,
        after: History,
        sink: KafkaSink,
        visible: Collection[str],
        given_up: Collection[str] = frozenset(),
    ) -> None:
        """Record a check's decisions.

        The check read the history (``before``), then the output's end offsets, and then the history again (``after``).
        ``given_up`` contains the abandoned transactions that are proven lost. Their rows would hide extra records.
        """
        for history in (before, after):
            self._incomplete = self._incomplete or self._why_incomplete(history, sink.name)
            for key, batch in history.batches.items():
                decided, proven = Counter[frozenset[str]](), Counter[frozenset[str]]()
                for _, encoded in batch.handles(sink.name):
                    handle = sink.decode_handle(encoded)
                    topics = topics_of(handle, sink)
                    self._producers.add((handle.producer_id, handle.producer_epoch))
                    decided[topics] += 0 if handle.uuid in given_up else handle.rows
                    proven[topics] += handle.rows if handle.uuid in visible else 0
                self._decided[key] = decided
                if history is before:
                    self._proven[key] = proven

    def _why_incomplete(self, history: History, sink: str) -> str | None:
        """Say why the tally may have missed one of the sink's batches. Return None if the tally contains every batch."""
        if any(_has_plain_rows(batch, sink) for batch in history.batches.values()):
            return "rows were written without a transaction (a weaker guarantee), and no decision counts these rows"
        if history.elsewhere:
            return f"earlier batches were decided in {', '.join(sorted(set(history.elsewhere.values())))}"
        oldest = next(iter(history.batches), None)
        if history.is_complete or oldest in self._decided:
            return None
        if oldest is not None and oldest._replace(batch=oldest.batch - 1) in self._decided:
            return None
        return "older decisions were truncated"

    def rows_of(self, batches: Collection[BatchId]) -> int:
        """Count the decided rows in these batches, as :attr:`Expected.decided` does."""
        return sum(self._decided[key].total() for key in batches)

    def expected(self) -> Expected:
        """Compute how many records the sink should have written by now."""
        return Expected(_sum(self._proven.values()), _sum(self._decided.values()), self._incomplete, self._producers)


def check_count(
    cluster: Cluster, topics: Mapping[str, Tail], expected: Expected, *, sole_writer: bool
) -> Iterator[Finding]:
    """For each topic, compare the number of records with the number of decided rows, or report why this would prove nothing.

    Args:
        cluster: tracks which topics are compacted.
        topics: the part of each topic that was read.
        expected: the number of records to expect.
        sole_writer: whether nothing else writes to the topics.

    Raises:
        TwoPhaseCommitError: the search for the extra records failed.
    """
    if not topics and expected.incomplete:
        text = f"the records were not counted: {expected.incomplete}, and {NO_TOPIC}"
        yield Finding(Kind.NOT_COMPARED, cluster.sink.name, text)
    for topic, tail in topics.items():
        if held_back := tail.bounds.held_back:
            text = (
                f"{counted(held_back, 'offset is', 'offsets are')} behind open transactions, so readers cannot see them"
            )
            yield Finding(Kind.HELD_BACK, topic, text)
    for group in expected.groups(topics):
        read = {topic: topics[topic] for topic in sorted(group & topics.keys())}
        if not read:
            continue
        where, count = ", ".join(read), sum(tail.records for tail in read.values())
        proven, decided = _rows_of(expected.proven, group), _rows_of(expected.decided, group)
        if reason := expected.incomplete or _why_not(cluster, group, read):
            text = f"the number of records ({count:,}, for {counted(decided, 'decided row')}) proves nothing, because {reason}"
            yield Finding(Kind.NOT_COMPARED, where, text)
        elif count < proven and (reason := why_maybe_deleted(cluster, read)):
            text = f"there are fewer records ({count:,}) than committed rows ({proven:,}), but {reason}"
            yield Finding(Kind.NOT_COMPARED, where, text)
        elif count < proven:
            text = f"only {counted(count, 'record')} for {counted(proven, 'committed row')}, so records were lost"
            yield Finding(Kind.RECORDS_MISSING, where, text)
        elif count > decided:
            kind = Kind.RECORDS_UNDECIDED if sole_writer else Kind.RECORDS_EXTRA
            ends = {topic: tail.bounds.stable for topic, tail in read.items()}
            strays = describe_strays(cluster.sink, ends, expected.producers)
            yield Finding(kind, where, f"{counted(count, 'record')} for {counted(decided, 'decided row')}; {strays}")


def _has_plain_rows(batch: Batch, sink: str) -> bool:
    """Whether the sink may have written rows of the batch without a transaction.

    All tasks of a run have the same guarantee, so one transaction shows that the sink's guarantee was not weaker. Tasks
    without a transaction wrote to another sink. A repair also removes lost transactions from its batch.
    """
    is_proven = batch.repairs or any(batch.handles(sink))
    return not is_proven and any(task.rows and not task.handles for task in batch.decision.tasks)


def _why_not(cluster: Cluster, group: frozenset[str], read: Mapping[str, Tail]) -> str | None:
    if others := sorted(group - read.keys()):
        return f"the same transactions also wrote to {', '.join(others)}"
    if reason := why_deleted(cluster, read):
        return reason
    if any(tail.bounds.held_back for tail in read.values()):
        return "some committed records are not readable yet"
    return None


def _rows_of(counts: Mapping[frozenset[str], int], group: frozenset[str]) -> int:
    return sum(rows for topics, rows in counts.items() if topics & group)


def _sum(counts: Iterable[Rows]) -> Rows:
    # sum() would create a counter for each batch.
    total = Counter[frozenset[str]]()
    for rows in counts:
        total.update(rows)
    return total
