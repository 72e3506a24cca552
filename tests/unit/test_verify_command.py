"""What many looks together say, whatever becomes of the last one."""

from __future__ import annotations

import contextlib
import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from integration.cli import app
from integration.verify import command
from integration.verify.command import Pace, run_verify
from integration.verify.findings import Finding, Kind
from integration.verify.report import Report
from integration.verify.verifier import VerifyOptions
from twopc.errors import ConfigurationError, RetriableError

GAP = Finding(Kind.SEQUENCE_GAPS, "--sequence value", "1 numbers are missing")
NOT_JUDGED = Finding(Kind.NOT_COMPARED, GAP.where, "1 numbers are missing: a batch is being committed")
MOMENTARY = RetriableError("no answer from the brokers")
LASTING = ConfigurationError("there is no topic out")
ONLINE = Pace(is_online=True, every_s=0)
DOUBLE = Finding(Kind.DUPLICATES, "t", "1 records were there before")


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


class Looks:
    """Stands in for a verifier: looks that see, or fail, as they are told."""

    def __init__(self, *told: Report | BaseException) -> None:
        self._told = list(told)

    def look(self, *_: Any) -> Report:
        told = self._told.pop(0) if self._told else KeyboardInterrupt()
        if isinstance(told, BaseException):
            raise told
        return told


def concluded(
    monkeypatch: pytest.MonkeyPatch, *told: tuple[Finding, ...] | BaseException, pace: Pace = ONLINE
) -> tuple[bool, str]:
    """What the command says in the end, and all that it has shown."""
    looks = Looks(*(one if isinstance(one, BaseException) else report(*one) for one in told))
    monkeypatch.setattr(command, "Cluster", lambda _: io.StringIO())
    monkeypatch.setattr(command, "Verifier", lambda *_: contextlib.nullcontext(looks))
    shown = io.StringIO()
    is_ok = run_verify(cast("Any", None), VerifyOptions(), pace, Console(file=shown, width=200), None)
    return is_ok, shown.getvalue()


def test_what_was_wrong_once_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, shown = concluded(monkeypatch, (DOUBLE,), ())
    assert not is_ok
    assert "error t: 1 records were there before" in shown


@pytest.mark.parametrize(
    ("looks", "verdict"),
    [
        ([(GAP,)], "Something is wrong."),
        ([(GAP,), ()], "Nothing is wrong."),
        ([(GAP,), (NOT_JUDGED,)], "Something is wrong."),
        ([(GAP,), (NOT_JUDGED,), ()], "Nothing is wrong."),
        ([(NOT_JUDGED,), (GAP,)], "Something is wrong."),
    ],
)
def test_a_gap_is_judged_anew_by_each_look_that_can(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[Finding, ...]], verdict: str
) -> None:
    assert verdict in concluded(monkeypatch, *looks)[1]


def test_a_look_that_fails_for_a_moment_is_told_and_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ok, shown = concluded(monkeypatch, (), MOMENTARY, ())
    assert is_ok
    assert "no look: no answer from the brokers; trying again in 0 s" in shown
    assert not concluded(monkeypatch, (), MOMENTARY, (DOUBLE,))[0]


@pytest.mark.parametrize("failure", [MOMENTARY, LASTING, ZeroDivisionError("unthought of")])
def test_what_was_found_wrong_outlives_whatever_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    is_ok, shown = concluded(monkeypatch, (DOUBLE,), failure)
    assert not is_ok
    assert "error t: 1 records were there before" in shown
    assert str(failure) in shown


@pytest.mark.parametrize("failure", [MOMENTARY, LASTING, ZeroDivisionError("unthought of")])
def test_a_watch_that_ends_with_a_failure_has_not_found_all_well(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    with pytest.raises(type(failure), match=str(failure)):
        concluded(monkeypatch, (), failure)
    with pytest.raises(type(failure), match=str(failure)):
        concluded(monkeypatch, failure, pace=Pace())


def test_a_watch_that_is_interrupted_before_its_first_look_has_compared_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RetriableError, match="nothing was compared"):
        concluded(monkeypatch)


def test_what_nobody_has_thought_of_is_no_verdict_on_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("unthought of")

    monkeypatch.setattr(command, "run_verify", fail)
    done = CliRunner().invoke(app, ["verify", "--bootstrap-servers", "b:1", "--sink", "s"])
    assert done.exit_code == 2
    assert "ZeroDivisionError (unthought of), which it does not expect: nothing is known of the sink" in done.stderr


def test_no_look_begins_after_the_time_that_a_watch_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
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
