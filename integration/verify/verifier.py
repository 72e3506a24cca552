"""Check a sink: what is decided, what is visible, what readers see.

The query may decide and commit batches during a check. So the decision log is read before and after the rest: what was
decided *before* must be visible, what was decided *after* may be, and everything else is a finding.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from integration.verify.checkpoint import check_checkpoint, finished_batches, initial_offsets
from integration.verify.decided import decided_in, superseded_in, topics_of
from integration.verify.findings import Finding, Kind
from integration.verify.history import History, history_of
from integration.verify.markers import Markers, missing, wait_for_commits
from integration.verify.output import Output, RecordChecks
from integration.verify.report import Report
from integration.verify.sources import check_sources, ranges
from integration.verify.spill import on_disk
from integration.verify.tally import Tally
from integration.verify.transactions import check_missing, check_open, check_visible
from sinks.kafka.transactional_id import driver_epoch_of
from twopc.errors import ConfigurationError, DecisionLogDamagedError
from twopc.log_view import LogView

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from integration.verify.cluster import Cluster
    from integration.verify.decided import Decided
    from sinks.kafka.reports import Description
    from twopc.files import Files


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What to check.

    Attributes:
        topics: topics to read; empty: all that the sink has written to.
        checkpoint: the query's checkpoint; None: not compared.
        record_checks: checks of each record.
        one_to_one: whether each source record becomes one row.
        sole_writer: whether nothing else writes to the topics.
    """

    topics: frozenset[str] = frozenset()
    checkpoint: Files | None = None
    record_checks: RecordChecks = field(default_factory=RecordChecks)
    one_to_one: bool = False
    sole_writer: bool = False


class Transactions(NamedTuple):
    """Numbers of transactions: decided, visible of these, and open."""

    decided: int
    visible: int
    open: int


class Verifier:
    """Checks a sink, once or repeatedly; later checks read only what is new."""

    def __init__(self, cluster: Cluster, options: VerifyOptions) -> None:
        self._cluster = cluster
        self._options = options
        with on_disk():
            self._scratch = tempfile.TemporaryDirectory(prefix="twopc-verify-", ignore_cleanup_errors=True)
            self._output = Output(options.record_checks, Path(self._scratch.name))
        self._markers = Markers()
        self._tally = Tally()
        self._topics: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        """Everything is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the temporary files."""
        self._scratch.cleanup()

    def check(self, on_total: Callable[[int], object], on_progress: Callable[[int], object]) -> Report:
        """Check the sink.

        Args:
            on_total: called once with the number of offsets to read.
            on_progress: called repeatedly with the number of records just read.

        Raises:
            TwoPhaseCommitError: the check could not be completed.
        """
        began = time.monotonic()
        sink = self._cluster.sink
        try:
            before, _ = self._history()
            required = decided_in(before, sink)
            absent = self._read_markers(before, required)
            listing = self._cluster.transactions.list_open(f"{sink.name}.")
            described = self._cluster.transactions.describe(listing.transactional_ids)
            self._output.update_bounds(self._cluster, self._topics_to_read(required))
            # Before the second read of the log: batches that Spark finishes later are not in this history.
            finished = () if self._options.checkpoint is None else finished_batches(self._options.checkpoint)
            after, ledger = self._history()
        except DecisionLogDamagedError as error:
            return self._damaged(str(error), time.monotonic() - began)
        if after.view.damage is not None:
            return self._damaged(after.view.damage, time.monotonic() - began)
        decided = decided_in(after, sink)
        known, visible = {**required, **decided}, self._markers.visible
        self._tally.record(before, after, sink, visible.keys())
        on_total(self._output.unread())
        self._output.read_new(self._cluster, on_progress)

        findings = [*self._check_ledger(after, ledger, finished)]
        # Replaced meanwhile: the replacement must be visible instead. Truncated meanwhile: it had been committed.
        still_decided = {uuid: found for uuid, found in absent.items() if uuid in decided}
        findings += check_missing(still_decided, decided, self._markers.bounds, before.last)
        findings += check_visible(visible.values(), known, superseded_in(after, sink), after)
        findings += check_open(described, decided, driver_epoch=_driver_epoch(after, decided))
        if not listing.complete:
            text = "a broker did not list its open transactions, there may be more: check again when all brokers answer"
            findings.append(Finding(Kind.LISTING_INCOMPLETE, sink.name, text))
        findings += self._output.check_count(self._cluster, self._tally.comparison(self._options.sole_writer))
        findings += self._output.check_records(is_quiescent=not absent and required.keys() == decided.keys())
        transactions = Transactions(len(decided), len(decided.keys() & visible.keys()), len(described))
        return self._report(after, ledger, transactions, time.monotonic() - began, findings)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _history(self) -> tuple[History, str]:
        ledgers = self._cluster.ledgers()
        return history_of(ledgers.deciding, ledgers.own), ledgers.name

    def _read_markers(self, before: History, required: Mapping[str, Decided]) -> dict[str, Description]:
        """Read the markers; return the transactions decided before that are not visible."""
        wait_for_commits(self._cluster, required, before.last)
        self._markers.read_new(self._cluster)
        absent = missing(self._cluster, self._markers, required)
        if absent:
            wait_for_commits(
                self._cluster, required, before.last
            )  # one was committed just now: the output must include it
        if not before.is_complete:
            self._markers.forget_before(before.batches.keys())
        return absent

    def _topics_to_read(self, required: Mapping[str, Decided]) -> frozenset[str]:
        self._topics = self._topics.union(*(topics_of(one.handle, self._cluster.sink) for one in required.values()))
        wrong = sorted(self._options.topics - self._topics)
        if self._topics and wrong:
            raise ConfigurationError(
                f"sink {self._cluster.sink.name!r} has not written to {', '.join(wrong)} but to "
                f"{', '.join(sorted(self._topics))}: correct --topic, or omit it"
            )
        return self._options.topics or self._topics

    def _check_ledger(self, history: History, ledger: str, finished: Collection[int]) -> Iterator[Finding]:
        again = [key.batch for key, batch in history.batches.items() if batch.repairs or batch.rewrites]
        if again:
            yield Finding(
                Kind.REPAIRED,
                f"batches {ranges(sorted(again))}",
                "lost transactions were written again, as intended",
            )
        files = self._options.checkpoint
        initial = {} if files is None else initial_offsets(files)
        yield from check_sources(history.batches, initial, one_to_one=self._options.one_to_one)
        if files is not None:
            yield from check_checkpoint(files, finished, history, ledger)

    def _report(
        self, history: History, ledger: str, transactions: Transactions, seconds: float, findings: list[Finding]
    ) -> Report:
        batches = history.batches
        begin, last = history.view.begin, history.last
        return Report(
            sink=self._cluster.sink.name,
            ledger=ledger,
            query_id=None if begin is None else begin.query_id,
            driver_epoch=max(history.acquisitions, default=None),
            acquisitions=len(history.acquisitions),
            first_batch=next(iter(batches)).batch if batches else None,
            last_batch=None if last is None else last.batch,
            complete=history.is_complete,
            batches=len(batches),
            rewritten=sum(batch.rewrites > 0 for batch in batches.values()),
            repaired=sum(batch.repairs > 0 for batch in batches.values()),
            transactions=transactions.decided,
            visible=transactions.visible,
            open=transactions.open,
            rows=self._tally.rows_of(batches.keys()),
            topics=tuple(self._output.bounds),
            records=sum(self._output.records.values()) if self._output.bounds else None,
            seconds=seconds,
            findings=tuple(findings),
        )

    def _damaged(self, damage: str, seconds: float) -> Report:
        """A report without comparisons: everything would be compared with the damaged log."""
        name = self._cluster.ledger.name
        nothing = History(LogView(damage=damage), {}, {}, is_complete=False)
        finding = Finding(Kind.LEDGER_DAMAGED, name, damage)
        return self._report(nothing, name, Transactions(0, 0, 0), seconds, [finding])


def _driver_epoch(history: History, decided: Mapping[str, Decided]) -> int:
    """The current driver's epoch. Its acquisition may be truncated; its transactional ids contain it too."""
    of = (driver_epoch_of(one.handle.transactional_id) for one in decided.values())
    return max([*history.acquisitions, *(number for number in of if number is not None)], default=-1)
