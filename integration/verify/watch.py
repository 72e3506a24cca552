"""Check a sink once or repeatedly, and print each check's report."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from integration.verify.cluster import Cluster
from integration.verify.findings import Kind, Severity
from integration.verify.report import show_finding
from integration.verify.verifier import Verifier
from twopc.errors import RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from integration.verify.findings import Finding
    from integration.verify.report import Report
    from integration.verify.verifier import VerifyOptions
    from sinks.kafka import KafkaSink


@dataclass(frozen=True)
class Pace:
    """How often to check.

    Attributes:
        is_online: check repeatedly, until interrupted or until ``for_s`` is over; else once.
        every_s: time between two checks, in s.
        for_s: no check starts later than this, in s; None: no limit.
    """

    is_online: bool = False
    every_s: float = 10.0
    for_s: float | None = None


def run_verify(
    sink: KafkaSink, options: VerifyOptions, pace: Pace, console: Console, emit: Callable[[str], object] | None
) -> bool:
    """Check a sink and print the results.

    Args:
        sink: names the ledger and the cluster.
        options: what to check.
        pace: how often.
        console: for tables, findings and progress.
        emit: gets one JSON object per check; None: print tables for people instead.

    Returns:
        whether no check found an error.

    Raises:
        TwoPhaseCommitError: the last check failed, and none before it found an error.
    """
    watch = _Watch(console, emit)
    try:
        with contextlib.closing(Cluster(sink)) as cluster, Verifier(cluster, options) as verifier:
            if not pace.is_online:
                watch.check(verifier)
            else:
                # Ctrl-C is the normal way to end a watch: print its report all the same.
                with contextlib.suppress(KeyboardInterrupt):
                    _check_repeatedly(watch, verifier, pace)
    except Exception as error:  # noqa: BLE001 - conclude() raises it again, unless errors found earlier would be lost
        watch.failure = error
    return watch.conclude()


class _Watch:
    """All checks of one command.

    Attributes:
        failure: why the last check failed; None if it succeeded.
        report: of the last check that succeeded.
    """

    def __init__(self, console: Console, emit: Callable[[str], object] | None) -> None:
        self._console = console
        self._emit = emit
        self._errors: dict[tuple[str, str], Finding] = {}
        self.failure: Exception | None = None
        self.report: Report | None = None

    def check(self, verifier: Verifier) -> None:
        """Check once."""
        self.report = report = _check(verifier, self._console)
        self.failure = None
        # Errors stay, except gaps: a later batch may fill a gap, so each check that can judges it again.
        not_judged = {finding.where for finding in report.findings if finding.kind is Kind.NOT_COMPARED}
        self._errors = {
            key: finding
            for key, finding in self._errors.items()
            if finding.kind is not Kind.SEQUENCE_GAPS or finding.where in not_judged
        }
        self._errors |= {(f.kind.value, f.where): f for f in report.findings if f.kind.severity is Severity.ERROR}
        if self._emit is not None:
            self._emit(json.dumps(report.facts()))

    def show_news(self, before: Report | None) -> None:
        """Print what the last check found and the one before did not."""
        report = self.report
        if report is None or self._emit is not None:
            return
        self._console.print(
            f"{time.strftime('%H:%M:%S')} batch {report.last_batch}, {report.rows:,} rows decided, "
            f"{report.records or 0:,} records, {report.open} open transactions"
        )
        for finding in report.findings:
            if before is None or finding not in before.findings:
                show_finding(finding, self._console)

    def show_failure(self, error: RetriableError, retry_s: float) -> None:
        """Print why a check failed; the next one resumes where it stopped."""
        self.failure = error
        self._console.print(
            f"{time.strftime('%H:%M:%S')} check failed: {error}; next check in {retry_s:g} s",
            markup=False,
            soft_wrap=True,
        )

    def conclude(self) -> bool:
        """Print the last report with the errors of all checks; return whether there are none.

        Raises:
            Exception: no check found an error, and the last one failed or there was none.
        """
        report = self.report
        if report is not None and self._emit is None:
            others = [finding for finding in report.findings if finding.kind.severity is not Severity.ERROR]
            replace(report, findings=(*self._errors.values(), *others)).show(self._console)
        failure = self.failure
        if report is None and failure is None:
            failure = RetriableError("interrupted before the first check finished: nothing was compared")
        if failure is not None and not self._errors:
            raise failure
        if failure is not None:
            self._console.print(f"The last check failed: {failure}", markup=False, soft_wrap=True)
        return not self._errors


def _check_repeatedly(watch: _Watch, verifier: Verifier, pace: Pace) -> None:
    began = time.monotonic()
    while True:
        before = watch.report
        try:
            watch.check(verifier)
        except RetriableError as error:
            watch.show_failure(error, pace.every_s)
        else:
            watch.show_news(before)
        if pace.for_s is not None and time.monotonic() - began + pace.every_s > pace.for_s:
            return
        time.sleep(pace.every_s)


def _check(verifier: Verifier, console: Console) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def set_total(offsets: int) -> None:
            progress.update(task, total=offsets)

        return verifier.check(set_total, lambda records: progress.advance(task, records))
