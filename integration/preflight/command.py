"""Run ``twopc preflight`` with parsed options: run the checks, print the table, and return the exit status."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Console

from twopc.integration.preflight.checks import FIX_REQUESTS, findings_of
from twopc.integration.preflight.findings import Finding, Result
from twopc.integration.preflight.report import Report
from twopc.integration.preflight.target import Target
from twopc.integration.reported import reported
from twopc.sinks.kafka.transactions import BrokersTooOldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.integration.preflight.checks import Check
    from twopc.sinks.kafka import KafkaSink

#: The exit status for the worst finding. As in ``twopc verify``, status 2 means that nothing was checked.
_STATUS: Final = {Result.PASS: 0, Result.WARN: 3, Result.FAIL: 1}
_NOT_CHECKED: Final = 2
_OURS: Final = "twopc.integration.preflight"


def main(sink: Callable[[], KafkaSink], topics: Sequence[str], further: Sequence[Check] = (), *, as_json: bool) -> int:
    """Check whether a cluster is suitable for a sink, and return the exit status.

    Args:
        sink: builds the sink. A ConfigurationError that it raises is reported like an error from the checks.
        topics: the output topics.
        further: another command's checks, which run last.
        as_json: whether to print a JSON object to stdout and everything else to stderr.
    """

    def checked() -> int:
        with _logging():
            report = run_preflight(sink(), topics, further)
        typer.echo(json.dumps(report.facts())) if as_json else report.show(Console(highlight=False))
        return _STATUS[report.result]

    gone = "interrupted. The preflight has removed everything that it created, unless a line above says otherwise"
    return reported("preflight", checked, not_done=_NOT_CHECKED, interrupted=gone)


def run_preflight(sink: KafkaSink, topics: Sequence[str], further: Sequence[Check] = ()) -> Report:
    """Run every check.

    Raises:
        ConfigurationError: an argument is wrong.
        TwoPhaseCommitError: no broker responds.
    """
    began = time.monotonic()
    try:
        opened = Target(sink, topics)
    except BrokersTooOldError as error:
        return Report(
            sink=sink.name,
            bootstrap_servers=sink.bootstrap_servers,
            cluster="",
            stand_in="",
            topics=tuple(topics),
            seconds=time.monotonic() - began,
            findings=(
                Finding(
                    "requests",
                    sink.bootstrap_servers,
                    Result.FAIL,
                    str(error),
                    "Upgrade these brokers, or write to other brokers",
                ),
                Finding("not tried", sink.name, Result.WARN, "the other checks did not run", FIX_REQUESTS),
            ),
        )
    with contextlib.closing(opened) as target:
        findings = findings_of(target, further)
        return Report(
            sink=sink.name,
            bootstrap_servers=sink.bootstrap_servers,
            cluster=target.brokers.cluster_id,
            stand_in=target.stand_in.ledger,
            topics=target.topics,
            seconds=time.monotonic() - began,
            findings=findings,
        )


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Print the warnings about leftovers, and hide the clients' log lines, which add nothing to the error messages."""
    handlers = {logging.getLogger(): logging.NullHandler(), logging.getLogger(_OURS): logging.StreamHandler()}
    for logger, handler in handlers.items():
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, handler in handlers.items():
            logger.removeHandler(handler)
