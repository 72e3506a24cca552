"""What many looks together say, whatever becomes of the last one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from typer.testing import CliRunner

from integration.cli import app
from integration.verify import command
from integration.verify.command import _Watch
from integration.verify.findings import Finding, Kind
from integration.verify.report import Report

if TYPE_CHECKING:
    import pytest

    from integration.verify.verifier import Verifier

GAP = Finding(Kind.SEQUENCE_GAPS, "--sequence value", "1 numbers are missing")
NOT_JUDGED = Finding(Kind.NOT_COMPARED, GAP.where, "1 numbers are missing: a batch is being committed")
DOUBLE = Finding(Kind.DUPLICATES, "t", "1 records were there before")


def report(*findings: Finding) -> Report:
    return Report(
        sink="s",
        ledger="l",
        lineage=None,
        incarnation=None,
        take_overs=0,
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

    def __init__(self, *told: Report | Exception) -> None:
        self._told = list(told)

    def look(self, *_: Any) -> Report:
        told = self._told.pop(0)
        if isinstance(told, Exception):
            raise told
        return told


def concluded(*looks: tuple[Finding, ...]) -> tuple[bool, str]:
    shown = io.StringIO()
    watch = _Watch(Console(file=shown, width=200), None)
    verifier = cast("Verifier", Looks(*(report(*findings) for findings in looks)))
    for _ in looks:
        watch.take(verifier)
    return watch.conclude(), shown.getvalue()


def test_what_was_wrong_once_is_wrong() -> None:
    is_ok, shown = concluded((DOUBLE,), ())
    assert not is_ok
    assert "error t: 1 records were there before" in shown


def test_a_gap_is_judged_anew_by_each_look_that_can() -> None:
    assert not concluded((GAP,))[0]
    assert concluded((GAP,), ())[0]
    assert not concluded((GAP,), (NOT_JUDGED,))[0]
    assert concluded((GAP,), (NOT_JUDGED,), ())[0]
    assert not concluded((NOT_JUDGED,), (GAP,))[0]


def test_what_nobody_has_thought_of_is_no_verdict_on_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("unthought of")

    monkeypatch.setattr(command, "run_verify", fail)
    done = CliRunner().invoke(app, ["verify", "--bootstrap-servers", "b:1", "--sink", "s"])
    assert done.exit_code == 2
    assert "ZeroDivisionError (unthought of), which it does not expect: nothing is known of the sink" in done.stderr
