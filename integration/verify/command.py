"""``twopc verify`` behind its options: looks once, or again and again, and says what it saw."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from integration.verify.cluster import Cluster
from integration.verify.findings import Kind, Severity
from integration.verify.report import show_finding
from integration.verify.verifier import Verifier
from sinks.kafka.options import PREFIX
from twopc.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from integration.verify.findings import Finding
    from integration.verify.report import Report
    from integration.verify.verifier import VerifyOptions
    from sinks.kafka import KafkaSink


@dataclass(frozen=True)
class Pace:
    """How often to look.

    Attributes:
        is_online: look until it is interrupted, or ``for_s`` are over; else once.
        every_s: the time between two looks, in s.
        for_s: no look begins later than that, in s; None: no end.
    """

    is_online: bool = False
    every_s: float = 10.0
    for_s: float | None = None


def connection_options(pairs: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Options of librdkafka, from ``key=value`` words and a properties file; the prefix ``kafka.`` may be left out.

    Raises:
        ConfigurationError: one is not ``key=value``, or the file cannot be read.
    """
    lines = list(pairs)
    if file is not None:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")] + lines
    options = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConfigurationError("an option is not key=value (not repeated here: it may be a password)")
        options[PREFIX + name.strip().removeprefix(PREFIX)] = value.strip()
    return options


def run_verify(
    sink: KafkaSink, options: VerifyOptions, pace: Pace, console: Console, emit: Callable[[str], object] | None
) -> bool:
    """Look at a sink, and say what was seen.

    Args:
        sink: whose ledger, by name, cluster and options.
        options: what to compare.
        pace: how often.
        console: for tables, findings and progress.
        emit: is given each look's JSON object, a line each; None: people are to read it.

    Returns:
        whether nothing was wrong in any look.

    Raises:
        TwoPhaseCommitError: the only look, or the last one, could not be taken, and nothing was found wrong before.
    """
    watch = _Watch(console, emit)
    try:
        with contextlib.closing(Cluster(sink)) as cluster, Verifier(cluster, options) as verifier:
            if not pace.is_online:
                watch.take(verifier)
            else:
                # Ctrl-C is how such a watch is ended: it still says what it saw.
                with contextlib.suppress(KeyboardInterrupt):
                    _take_many(watch, verifier, pace)
    except Exception as error:  # noqa: BLE001 - raised again, unless something wrong was found before: that must not be lost
        watch.failure = error
    return watch.conclude()


class _Watch:
    """All looks of one command. ``failure``: why the last one could not be taken."""

    def __init__(self, console: Console, emit: Callable[[str], object] | None) -> None:
        self._console = console
        self._emit = emit
        self._report: Report | None = None
        self.failure: Exception | None = None
        self._errors: dict[tuple[str, str], Finding] = {}

    def take(self, verifier: Verifier) -> None:
        """One look."""
        self._report = report = _look(verifier, self._console)
        self.failure = None
        # What was wrong once is wrong; but a gap is judged anew by each look that can, as a later batch may fill it.
        not_judged = {finding.where for finding in report.findings if finding.kind is Kind.NOT_COMPARED}
        self._errors = {
            key: finding
            for key, finding in self._errors.items()
            if finding.kind is not Kind.SEQUENCE_GAPS or finding.where in not_judged
        }
        self._errors |= {(f.kind.value, f.where): f for f in report.findings if f.kind.severity is Severity.ERROR}
        if self._emit is not None:
            self._emit(json.dumps(report.facts()))

    def tell_news(self, before: Report | None) -> None:
        """What the last look saw that the one before did not."""
        report = self._report
        if report is None or self._emit is not None:
            return
        self._console.print(
            f"{time.strftime('%H:%M:%S')} batch {report.last_batch}, {report.rows:,} rows decided, "
            f"{report.records or 0:,} records, {report.open} open"
        )
        for finding in report.findings:
            if before is None or finding not in before.findings:
                show_finding(finding, self._console)

    def tell_failure(self, error: RetriableError, again_s: float) -> None:
        """A look could not be taken, the next one may be: it goes on where this one was."""
        self.failure = error
        self._console.print(
            f"{time.strftime('%H:%M:%S')} no look: {error}; trying again in {again_s:g} s", markup=False, soft_wrap=True
        )

    @property
    def report(self) -> Report | None:
        """The last look's."""
        return self._report

    def conclude(self) -> bool:
        """Say the last look, and whether nothing was wrong in any.

        Raises:
            Exception: nothing wrong was found, and the last look failed, or there was none.
        """
        report = self._report
        if report is not None and self._emit is None:
            others = [finding for finding in report.findings if finding.kind.severity is not Severity.ERROR]
            replace(report, findings=(*self._errors.values(), *others)).show(self._console)
        failure = self.failure
        if report is None and failure is None:
            failure = RetriableError("it was interrupted before the first look was over: nothing was compared")
        if failure is not None and not self._errors:
            raise failure
        if failure is not None:
            self._console.print(f"The last look failed: {failure}", markup=False, soft_wrap=True)
        return not self._errors


def _take_many(watch: _Watch, verifier: Verifier, pace: Pace) -> None:
    began = time.monotonic()
    while True:
        before = watch.report
        try:
            watch.take(verifier)
        except RetriableError as error:
            watch.tell_failure(error, pace.every_s)
        else:
            watch.tell_news(before)
        if pace.for_s is not None and time.monotonic() - began + pace.every_s > pace.for_s:
            return
        time.sleep(pace.every_s)


def _look(verifier: Verifier, console: Console) -> Report:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def set_total(offsets: int) -> None:
            progress.update(task, total=offsets)

        return verifier.look(set_total, lambda records: progress.advance(task, records))
