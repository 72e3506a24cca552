"""Check a sink: compare its decisions, its visible transactions and its output.

The query may decide and commit batches during a check. So the check reads the decision log twice: once before and once
after everything else. A batch from the first read must be visible. A batch that only the second read finds may or may
not be visible. Any other result is a finding.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from twopc.counted import counted
from twopc.errors import ConfigurationError, DecisionLogDamagedError
from twopc.integration.verify.checkpoint import check_checkpoint, finished_batches, initial_offsets
from twopc.integration.verify.describing import describe, undescribed
from twopc.integration.verify.findings import Finding, Kind
from twopc.integration.verify.markers import Markers, missing, wait_for_commits
from twopc.integration.verify.output import Output, RecordChecks
from twopc.integration.verify.report import Report
from twopc.integration.verify.sources import check_sources, ranges
from twopc.integration.verify.spill import on_disk
from twopc.integration.verify.tally import Tally, check_count
from twopc.integration.verify.transactions import (
    check_missing,
    check_open,
    check_visible,
    decided_in,
    given_up,
    newest_epoch,
    superseded_in,
    topics_of,
)
from twopc.sealed import OtherVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from twopc.files import Files
    from twopc.integration.verify.cluster import Cluster
    from twopc.integration.verify.history import Batch, History
    from twopc.integration.verify.transactions import Decided
    from twopc.sinks.kafka.reports import Description


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The checks to run."""

    topics: frozenset[str] = frozenset()  #: the topics to read; empty: every topic that the sink has written to
    checkpoint: Files | None = None  #: the query's checkpoint; None: no checkpoint is compared
    record_checks: RecordChecks = field(default_factory=RecordChecks)  #: checks of each record
    one_to_one: bool = False  #: whether each source record becomes one row
    sole_writer: bool = False  #: whether nothing else writes to the topics


class Verifier(AbstractContextManager["Verifier"]):
    """Checks a sink, once or repeatedly. Later checks read only new records."""

    def __init__(self, cluster: Cluster, options: VerifyOptions) -> None:
        self._cluster = cluster
        self._options = options
        with on_disk():
            self._scratch = tempfile.TemporaryDirectory(prefix="twopc-verify-", ignore_cleanup_errors=True)
        self._output = Output(options.record_checks, Path(self._scratch.name))
        self._markers = Markers()
        self._tally = Tally()
        self._topics: frozenset[str] = frozenset()

    def __exit__(self, *_: object) -> None:
        """Remove the temporary files."""
        self._scratch.cleanup()

    def check(self, on_total: Callable[[int], object], on_progress: Callable[[int], object]) -> Report:
        """Check the sink.

        Args:
            on_total: called once with the number of offsets to read.
            on_progress: called repeatedly with the number of records that the check has just read.

        Raises:
            TwoPhaseCommitError: the check could not be completed.
        """
        began = time.monotonic()
        sink, options = self._cluster.sink, self._options
        try:
            before, _ = self._history()
            required = decided_in(before, sink)
            absent = self._read_markers(before, required)
            listing = self._cluster.transactions.list_open(f"{sink.name}.")
            described = describe(self._cluster.transactions, listing.transactional_ids)
            self._output.update_bounds(self._cluster, self._topics_to_read(required))
            # List the finished batches before the second read of the log. That read may miss the decisions of batches that
            # Spark finishes later.
            finished = () if options.checkpoint is None else finished_batches(options.checkpoint)
            after, ledger = self._history()
        except OtherVersionError:
            raise  # nothing is damaged, but this version cannot check
        except DecisionLogDamagedError as error:
            # Every comparison would use the damaged log, so compare nothing.
            name = self._cluster.ledger.name
            damage = Finding(Kind.LEDGER_DAMAGED, name, str(error))
            return Report(sink=sink.name, ledger=name, seconds=time.monotonic() - began, findings=(damage,))
        decided = decided_in(after, sink)
        known, visible = {**required, **decided}, self._markers.visible
        # If a transaction was replaced in the meantime, its replacement must be visible. If its decision was truncated,
        # the transaction had been committed.
        still_decided = {uuid: found for uuid, found in absent.items() if uuid in decided}
        marker_bounds = self._markers.partitions.bounds
        self._tally.record(
            before, after, sink, visible.keys(), given_up=given_up(still_decided, decided, marker_bounds)
        )
        on_total(self._output.unread())
        self._output.read_new(self._cluster, on_progress)

        findings = [*self._check_ledger(after, ledger, finished)]
        findings += check_missing(still_decided, decided, marker_bounds, before.last)
        findings += check_visible(visible.values(), known, superseded_in(after, sink), after)
        findings += check_open(described, decided, driver_epoch=newest_epoch(after, decided))
        if not listing.complete:
            text = (
                "a broker did not list its open transactions, so the sink may have open transactions that are not "
                "shown. Check again when all brokers respond"
            )
            findings.append(Finding(Kind.LISTING_INCOMPLETE, sink.name, text))
        if unknown := undescribed(described):
            text = (
                f"no coordinator described {counted(len(unknown), 'listed transaction')} ({unknown[0]}"
                f"{', …' if len(unknown) > 1 else ''}). Each of these may still be open. Check again when all brokers respond"
            )
            findings.append(Finding(Kind.LISTING_INCOMPLETE, sink.name, text))
        topics, expected = self._output.topics, self._tally.expected()
        findings += check_count(self._cluster, topics, expected, sole_writer=options.sole_writer)
        abandoned = {uuid: decided[uuid].id.batch for uuid in still_decided if decided[uuid].abandoned}
        findings += self._output.check_records(
            self._cluster,
            # Nothing commits an abandoned transaction any more.
            is_quiescent=absent.keys() == abandoned.keys() and required.keys() == decided.keys(),
            has_rows=expected.incomplete is not None or any(map(_has_rows, after.batches.values())),
            abandoned=abandoned.values(),
        )
        batches, begin, last = after.batches, after.view.begin, after.last
        return Report(
            sink=sink.name,
            ledger=ledger,
            query_id=None if begin is None else begin.query_id,
            driver_epoch=max(after.acquisitions, default=None),
            acquisitions=len(after.acquisitions),
            first_batch=next((key.batch for key in batches), None),
            last_batch=None if last is None else last.batch,
            last_offsets=after.view.highest_offsets,
            complete=after.is_complete,
            batches=len(batches),
            rewritten=sum(batch.rewrites > 0 for batch in batches.values()),
            repaired=sum(batch.repairs > 0 for batch in batches.values()),
            transactions=len(decided),
            visible=len(decided.keys() & visible.keys()),
            open=len(described),
            rows=self._tally.rows_of(batches.keys()),
            topics=tuple(topics),
            records=sum(self._output.records.values()) if topics else None,
            seconds=time.monotonic() - began,
            findings=tuple(findings),
        )

    def _history(self) -> tuple[History, str]:
        ledgers = self._cluster.ledgers()
        return ledgers.history(), ledgers.name

    def _read_markers(self, before: History, required: Mapping[str, Decided]) -> dict[str, Description]:
        """Read the markers. Return the transactions that were decided before the check and are not visible."""
        wait_for_commits(self._cluster, required, before.last)
        self._markers.read_new(self._cluster)
        absent = missing(self._cluster, self._markers, required)
        if absent:
            # A transaction may have been committed just now. In that case, the output must include its rows.
            wait_for_commits(self._cluster, required, before.last)
        if not before.is_complete:
            self._markers.forget_before(before.batches.keys())
        return absent

    def _topics_to_read(self, required: Mapping[str, Decided]) -> frozenset[str]:
        self._topics = self._topics.union(*(topics_of(one.handle, self._cluster.sink) for one in required.values()))
        wrong = sorted(self._options.topics - self._topics)
        if self._topics and wrong:
            raise ConfigurationError(
                f"sink {self._cluster.sink.name!r} has not written to {', '.join(wrong)}, only to "
                f"{', '.join(sorted(self._topics))}. Check --topic, or omit the option"
            )
        return self._options.topics or self._topics

    def _check_ledger(self, history: History, ledger: str, finished: Collection[int]) -> Iterator[Finding]:
        again = [key.batch for key, batch in history.batches.items() if batch.repairs or batch.rewrites]
        if again:
            text = "the rows of lost transactions were written again, as intended"
            yield Finding(Kind.REPAIRED, f"batches {ranges(sorted(again))}", text)
        files = self._options.checkpoint
        initial = {} if files is None else initial_offsets(files)
        yield from check_sources(history.batches, initial, one_to_one=self._options.one_to_one)
        if files is not None:
            yield from check_checkpoint(files, finished, history, ledger)


def _has_rows(batch: Batch) -> bool:
    """Whether any task in the batch received rows.

    If the sink has a weaker guarantee, the handles do not show which sink the rows were meant for.
    """
    return any(task.rows for task in batch.decision.tasks)
