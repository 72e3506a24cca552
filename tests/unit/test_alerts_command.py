"""``twopc alerts``: on the history of a running query or a dead one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.unit.history_support import T0, ended, failed, write
from tests.unit.test_alerts_webhook import Endpoint, serving
from twopc.integration.alerts import command
from twopc.integration.alerts.command import Watching, main
from twopc.integration.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RULES = "consecutive.count=2\nstalled.for=10m\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "alerts.properties"
    path.write_text(RULES)
    return path


@pytest.fixture
def endpoint(rules: Path) -> Iterator[Endpoint]:
    found = Endpoint()
    with serving(found) as url:
        rules.write_text(f"{RULES}webhook.url={url}\n")
        yield found


def _bad(number: int) -> Any:
    return failed(number, "RetriableError", "away")


def _told(endpoint: Endpoint) -> list[tuple[str, str]]:
    return [(body["rule"], body["status"]) for body in endpoint.bodies]


def _watch(checkpoint: Path, rules: Path, *steps: Callable[[], object], state: Path | None = None) -> int:
    """Check, do the first step instead of the pause, check again, and so on. Each pause takes a minute."""
    now, left = [T0 / 1000 + 10], list(steps)

    def pause(_: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()
        now[0] += 60

    watching = Watching(checkpoint, rules, state, interval_s=1.0, clock=lambda: now[0], pause=pause)
    return main(watching, as_json=False)


def test_a_watch_reports_each_episode_once_and_its_end_once(tmp_path: Path, rules: Path, endpoint: Endpoint) -> None:
    checkpoint = write(tmp_path / "checkpoint", [ended(0)])
    lines = [ended(0), _bad(1), _bad(2), _bad(3)]
    status = _watch(
        checkpoint,
        rules,
        lambda: write(checkpoint, lines[:3]),
        lambda: write(checkpoint, lines),
        lambda: write(checkpoint, [*lines, ended(4)]),
    )
    assert (status, _told(endpoint)) == (0, [("consecutive", "firing"), ("consecutive", "over")])


def test_an_episode_between_two_checks_is_reported_too(tmp_path: Path, rules: Path, endpoint: Endpoint) -> None:
    checkpoint = write(tmp_path / "checkpoint", [ended(0)])
    _watch(checkpoint, rules, lambda: write(checkpoint, [ended(0), _bad(1), _bad(2), ended(3)]))
    assert _told(endpoint) == [("consecutive", "firing"), ("consecutive", "over")]


def test_a_dead_driver_is_detected(tmp_path: Path, rules: Path, endpoint: Endpoint) -> None:
    checkpoint = write(tmp_path / "checkpoint", [ended(0)])
    assert _watch(checkpoint, rules, *[lambda: None] * 15) == 1
    assert _told(endpoint) == [("stalled", "firing")]


def test_a_temporarily_unreadable_history_does_not_end_the_watch(
    tmp_path: Path, rules: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write(tmp_path / "checkpoint", [ended(0)])
    away = tmp_path / "away"
    steps: list[Callable[[], object]] = [lambda: checkpoint.rename(away), *[lambda: None] * 12]
    assert _watch(checkpoint, rules, *steps, lambda: away.rename(checkpoint)) == 1
    assert _told(endpoint) == [("stalled", "firing")]
    assert "the history could not be read: " in capsys.readouterr().err


def test_rules_that_already_held_before_the_watch_are_reported(tmp_path: Path, rules: Path, endpoint: Endpoint) -> None:
    checkpoint = write(tmp_path / "checkpoint", [_bad(0), _bad(0), ended(0), _bad(1), _bad(1)])
    assert _watch(checkpoint, rules) == 1
    assert _told(endpoint) == [("consecutive", "firing")]


def test_one_check_reports_each_alert_once(tmp_path: Path, rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, state = write(tmp_path / "checkpoint", [ended(0)]), tmp_path / "told.json"
    watching = Watching(checkpoint, rules, state, clock=lambda: T0 / 1000 + 60)
    assert main(watching, as_json=False) == 0
    write(checkpoint, [ended(0), _bad(1), _bad(2)])
    for shown in (" firing consecutive", " still firing consecutive"):
        capsys.readouterr()
        assert main(watching, as_json=False) == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert shown in line


@pytest.mark.parametrize("where", ["read", "deliver"])
def test_an_interrupted_check_says_nothing_about_the_rules(
    where: str, tmp_path: Path, rules: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 0 would mean that no rule is firing."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    checkpoint = write(tmp_path / "checkpoint", [_bad(0), _bad(0)])
    monkeypatch.setattr(command, where, interrupted)
    assert main(Watching(checkpoint, rules), as_json=False) == 2
    assert endpoint.bodies == []


def test_runs_that_check_once_remember_their_alerts(tmp_path: Path, rules: Path, endpoint: Endpoint) -> None:
    checkpoint, state = write(tmp_path / "checkpoint", [ended(0)]), tmp_path / "told.json"

    def once() -> int:
        watching = Watching(checkpoint, rules, state, clock=lambda: T0 / 1000 + 60)
        return main(watching, as_json=False)

    assert once() == 0
    write(checkpoint, [ended(0), _bad(1), _bad(1)])
    assert (once(), once()) == (1, 1)
    write(checkpoint, [ended(0), _bad(1), _bad(1), ended(1)])
    assert (once(), once()) == (0, 0)
    write(checkpoint, [ended(0), _bad(1), _bad(1), ended(1), _bad(2), _bad(2), ended(2)])
    assert once() == 0
    assert _told(endpoint) == [("consecutive", status) for status in ("firing", "over", "firing", "over")]


def test_a_torn_state_is_logged_and_replaced(
    tmp_path: Path, rules: Path, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "told.json"
    state.write_bytes(b'{"format":"twopc-alerts/1","op')
    checkpoint = write(tmp_path / "checkpoint", [_bad(0), _bad(0)])
    assert main(Watching(checkpoint, rules, state, clock=lambda: T0 / 1000 + 60), as_json=False) == 1
    assert _told(endpoint) == [("consecutive", "firing")]
    assert "its alert will be sent again" in caplog.text
    assert b"consecutive" in state.read_bytes()


def _run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["alerts", *map(str, arguments)])


def test_the_command_line_shows_the_rules_that_hold_and_their_exit_status(tmp_path: Path, rules: Path) -> None:
    checkpoint = write(tmp_path / "checkpoint", [_bad(0), _bad(0)])
    result = _run(checkpoint, "--rules", rules, "--name", "orders")
    assert result.exit_code == 1
    assert "firing consecutive, query orders: 2 checkpoints failed in a row." in result.stdout
    found = json.loads(_run(checkpoint, "--rules", rules, "--json").stdout)
    assert (
        {one["rule"] for one in found["firing"]} == {"consecutive", "stalled"} == {one["rule"] for one in found["told"]}
    )
    rules.write_text("consecutive.count=9\n")
    result = _run(checkpoint, "--rules", rules)
    assert (result.exit_code, result.stdout) == (0, "No rule is firing.\n")


def test_wrong_rules_and_a_missing_history_cause_a_one_line_error_and_status_2(tmp_path: Path, rules: Path) -> None:
    result = _run(tmp_path / "nothing", "--rules", rules)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    rules.write_text("consecutive.cuont=3\n")
    result = _run(write(tmp_path / "checkpoint", [ended(0)]), "--rules", rules)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "consecutive.cuont is not a setting" in result.stderr
