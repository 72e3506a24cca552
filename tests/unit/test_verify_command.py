"""The report of a series of checks, for every way in which the series ends."""

from __future__ import annotations

import contextlib
import io
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from twopc.errors import ConfigurationError, RetriableError
from twopc.integration.cli import app
from twopc.integration.verify import command
from twopc.integration.verify.command import Pace, run_verify
from twopc.integration.verify.findings import Finding, Kind
from twopc.integration.verify.report import Report
from twopc.integration.verify.verifier import VerifyOptions

GAP = Finding(Kind.SEQUENCE_GAPS, "--sequence value", "1 number is missing")
NOT_JUDGED = Finding(Kind.NOT_COMPARED, GAP.where, "1 number is missing; but a batch is being committed")
MOMENTARY = RetriableError("no answer from the brokers")
LASTING = ConfigurationError("there is no topic out")
ONLINE = Pace(is_online=True, every_s=0)
DUPLICATE = Finding(Kind.DUPLICATES, "t", "1 duplicates")


def report(*findings: Finding) -> Report:
    return Report(
        sink="s",
        ledger="l",
        query_id=None,
        driver_epoch=None,
        acquisitions=0,
        complete=True,
        first_batch=None,
        last_batch=None,
        batches=0,
        rewritten=0,
        repaired=0,
        open=0,
        transactions=0,
        visible=0,
        rows=0,
        topics=("t",),
        records=None,
        seconds=1.23,
        findings=findings,
    )


class FakeVerifier:
    """Each check returns the next of these reports, or raises the next of these errors."""

    def __init__(self, *results: Report | BaseException) -> None:
        self._results = list(results)

    def check(self, *_: Any) -> Report:
        result = self._results.pop(0) if self._results else KeyboardInterrupt()
        if isinstance(result, BaseException):
            raise result
        return result


def concluded(
    monkeypatch: pytest.MonkeyPatch, *results: tuple[Finding, ...] | BaseException, pace: Pace = ONLINE
) -> tuple[bool, str]:
    """The result of all checks, and everything printed."""
    verifier = FakeVerifier(*(one if isinstance(one, BaseException) else report(*one) for one in results))
    monkeypatch.setattr(command, "Cluster", lambda *_: io.StringIO())
    monkeypatch.setattr(command, "Verifier", lambda *_: contextlib.nullcontext(verifier))
    shown = io.StringIO()
    is_ok = run_verify(cast("Any", None), VerifyOptions(), pace, Console(file=shown, width=200), None)
    return is_ok, shown.getvalue()


def test_an_error_found_by_an_earlier_check_stays_in_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, shown = concluded(monkeypatch, (DUPLICATE,), ())
    assert not is_ok
    assert "error t: 1 duplicates" in shown


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([(GAP,)], "Errors found."),
        ([(GAP,), ()], "No errors found."),
        ([(GAP,), (NOT_JUDGED,)], "Errors found."),
        ([(GAP,), (NOT_JUDGED,), ()], "No errors found."),
        ([(NOT_JUDGED,), (GAP,)], "Errors found."),
    ],
)
def test_each_check_reassesses_a_gap_if_it_can(
    monkeypatch: pytest.MonkeyPatch, checks: list[tuple[Finding, ...]], verdict: str
) -> None:
    assert verdict in concluded(monkeypatch, *checks)[1]


def test_a_temporary_failure_is_reported_and_followed_by_another_check(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, shown = concluded(monkeypatch, (), MOMENTARY, ())
    assert is_ok
    assert "check failed: no answer from the brokers; next check in 0 s" in shown
    assert not concluded(monkeypatch, (), MOMENTARY, (DUPLICATE,))[0]


@pytest.mark.parametrize("failure", [MOMENTARY, LASTING, ZeroDivisionError("a bug")])
def test_errors_that_were_found_are_reported_no_matter_how_the_watch_ends(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    is_ok, shown = concluded(monkeypatch, (DUPLICATE,), failure)
    assert not is_ok
    assert "error t: 1 duplicates" in shown
    assert str(failure) in shown


@pytest.mark.parametrize("failure", [MOMENTARY, LASTING, ZeroDivisionError("a bug")])
def test_a_failure_that_ends_a_watch_is_raised(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    with pytest.raises(type(failure), match=str(failure)):
        concluded(monkeypatch, (), failure)
    with pytest.raises(type(failure), match=str(failure)):
        concluded(monkeypatch, failure, pace=Pace())


def test_a_watch_interrupted_before_its_first_check_raises_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RetriableError, match="nothing was compared"):
        concluded(monkeypatch)


def test_an_unexpected_error_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(command, "run_verify", fail)
    done = CliRunner().invoke(app, ["verify", "--bootstrap-servers", "b:1", "--sink", "s"])
    assert done.exit_code == 2
    assert "unexpected ZeroDivisionError (a bug). Please report this" in done.stderr


def test_ctrl_c_ends_the_watch_even_if_a_c_extension_replaces_its_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Interrupted(FakeVerifier):
        def check(self, *_: Any) -> Report:
            if self._results:
                return super().check()
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise TypeError("as confluent-kafka does")

    monkeypatch.setattr("tests.unit.test_verify_command.FakeVerifier", Interrupted)
    try:
        is_ok, shown = concluded(monkeypatch, ())
    finally:
        signal.signal(signal.SIGINT, before)
    assert is_ok and "as confluent-kafka does" not in shown


def test_an_interrupted_check_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1 would mean that the sink has errors."""

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_verify", interrupted)
    done = CliRunner().invoke(app, ["verify", "--bootstrap-servers", "b:1", "--sink", "s"])
    assert done.exit_code == 2
    assert "twopc verify: interrupted. The sink was not checked" in done.stderr


def test_no_check_starts_after_the_watch_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    clock = SimpleNamespace(
        monotonic=lambda: now_s[0],
        sleep=lambda seconds: now_s.__setitem__(0, now_s[0] + seconds),
        strftime=lambda _: "12:00:00",
    )
    monkeypatch.setattr(command, "time", clock)
    pace = Pace(is_online=True, every_s=10, for_s=25)
    is_ok, shown = concluded(monkeypatch, (), (), (), (), pace=pace)
    assert (is_ok, shown.count("12:00:00"), now_s) == (True, 3, [1020.0])
