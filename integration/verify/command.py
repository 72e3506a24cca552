"""Run ``twopc verify`` with parsed options: check once or repeatedly, print the findings, and return the exit status."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from twopc.counted import counted
from twopc.errors import RetriableError
from twopc.integration.reported import reported
from twopc.integration.signals import ended_by_signals
from twopc.integration.verify.checkpoint import facts_of
from twopc.integration.verify.cluster import Cluster
from twopc.integration.verify.findings import Kind
from twopc.integration.verify.report import show_finding
from twopc.integration.verify.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.integration.verify.findings import Finding
    from twopc.integration.verify.report import Report
    from twopc.integration.verify.verifier import VerifyOptions
    from twopc.sinks.kafka import KafkaSink

_NO_ERRORS: Final = 0
_ERRORS_FOUND: Final = 1
_NOT_CHECKED: Final = 2


@dataclass(frozen=True)
class Pace:
    """How often the command checks."""

    is_online: bool = False  #: whether to check repeatedly, until an interrupt or the end of ``for_s``
    every_s: float = 10.0  #: the time between checks, in seconds
    for_s: float | None = None  #: the time after which no check starts, in seconds; None: no limit


def main(
    sink: Callable[[], KafkaSink],
    options: VerifyOptions,
    pace: Pace,
    *,
    as_json: bool,
    beside: Callable[[], tuple[KafkaSink, ...]] = tuple,
) -> int:
    """Verify a sink, and return the exit status.

    Args:
        sink: builds the sink. A ConfigurationError from this function is reported like an error from the check.
        options: what to check.
        pace: how often to check.
        as_json: whether to print JSON objects to stdout and everything else to stderr.
        beside: builds the query's Kafka sinks, one of which may hold the decisions.
    """

    def checked() -> int:
        console = Console(stderr=as_json, highlight=False)
        is_ok = run_verify(sink(), options, pace, console, typer.echo if as_json else None, beside())
        return _NO_ERRORS if is_ok else _ERRORS_FOUND

    return reported("verify", checked, not_done=_NOT_CHECKED, interrupted="interrupted. The sink was not checked")


def run_verify(  # noqa: PLR0913, PLR0917 - the command's options and output
    sink: KafkaSink,
    options: VerifyOptions,
    pace: Pace,
    console: Console,
    emit: Callable[[str], object] | None,
    beside: tuple[KafkaSink, ...] = (),
) -> bool:
    """Check a sink and print the results. Return True if no check detected an error.

    ``emit`` receives one JSON object per check. If ``emit`` is None, ``console`` receives human-readable tables.
    ``beside`` lists the query's Kafka sinks, one of which may hold the decisions.

    Raises:
        TwoPhaseCommitError: the last check failed, and no earlier check found an error.
    """
    watch = _Watch(console, emit)
    try:
        facts = facts_of(options.checkpoint, beside)
        with contextlib.closing(Cluster(sink, facts)) as cluster, Verifier(cluster, options) as verifier:
            if not pace.is_online:
                watch.check(verifier)
            else:
                # Ctrl-C is the normal way to stop repeated checks, so print the report anyway.
                with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
                    watch.check_repeatedly(verifier, pace)
    except Exception as error:  # noqa: BLE001 - conclude() raises it again, unless that would hide errors found earlier
        watch.failure = error
    return watch.conclude()


class _Watch:
    """All checks that one command runs.

    Attributes:
        failure: why the last check failed; None if the last check succeeded.
    """

    def __init__(self, console: Console, emit: Callable[[str], object] | None) -> None:
        self._console = console
        self._emit = emit
        self._errors: dict[tuple[Kind, str], Finding] = {}
        self._report: Report | None = None  # from the last successful check
        self.failure: Exception | None = None

    def check(self, verifier: Verifier) -> Report:
        """Check once."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        is_hidden = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=is_hidden) as progress:
            task = progress.add_task("reading", total=None)
            report = verifier.check(
                lambda offsets: progress.update(task, total=offsets), lambda records: progress.advance(task, records)
            )
        self._report, self.failure = report, None
        # Errors stay in the report, except gaps. A later batch may fill a gap, so each check judges gaps again if it can.
        not_judged = {finding.where for finding in report.findings if finding.kind is Kind.NOT_COMPARED}
        self._errors = {
            key: finding
            for key, finding in self._errors.items()
            if finding.kind is not Kind.SEQUENCE_GAPS or finding.where in not_judged
        }
        self._errors |= {(finding.kind, finding.where): finding for finding in report.findings if finding.is_error}
        if self._emit is not None:
            self._emit(json.dumps(report.facts()))
        return report

    def check_repeatedly(self, verifier: Verifier, pace: Pace) -> None:
        """Check at this pace.

        If a check fails with a retriable error, print the error. The next check resumes where the failed check stopped.
        """
        began = time.monotonic()
        while True:
            before = self._report
            try:
                report = self.check(verifier)
            except RetriableError as error:
                self.failure = error
                self._print(f"{time.strftime('%H:%M:%S')} check failed: {error}; next check in {pace.every_s:g} s")
            else:
                self._show_news(before, report)
            if pace.for_s is not None and time.monotonic() - began + pace.every_s > pace.for_s:
                return
            time.sleep(pace.every_s)

    def conclude(self) -> bool:
        """Print the last report with the errors of all checks. Return True if no check detected an error.

        Raises:
            Exception: no check found an error, and the last check failed or no check finished.
        """
        report, failure = self._report, self.failure
        if report is not None and self._emit is None:
            others = [finding for finding in report.findings if not finding.is_error]
            replace(report, findings=(*self._errors.values(), *others)).show(self._console)
        if report is None and failure is None:
            failure = RetriableError("interrupted before the first check finished, so nothing was compared")
        if failure is not None:
            if not self._errors:
                raise failure
            self._print(f"The last check failed: {failure}")
        return not self._errors

    def _show_news(self, before: Report | None, report: Report) -> None:
        """Print the findings that the previous check did not report."""
        if self._emit is not None:
            return
        self._console.print(
            f"{time.strftime('%H:%M:%S')} batch {report.last_batch}, {counted(report.rows, 'row')} decided, "
            f"{counted(report.records or 0, 'record')}, {counted(report.open, 'open transaction')}"
        )
        for finding in report.findings:
            if before is None or finding not in before.findings:
                show_finding(finding, self._console)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
