"""Rules and their episodes, at times that the tests set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.history_support import T0, ended, failed
from twopc.errors import ConfigurationError
from twopc.integration.alerts import ConsecutiveFailures, FailedCheckpoints, NoCheckpoint
from twopc.integration.alerts.episodes import Episodes, State
from twopc.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from twopc.integration.alerts.episodes import Alert
    from twopc.integration.alerts.rules import Rule
    from twopc.progress import Checkpoint

MINUTE = 60_000
TOTAL = FailedCheckpoints("failing", total=3)
GROWTH = FailedCheckpoints("worse", growth=2)
BROKEN = ConsecutiveFailures("broken", 3)
STALLED = NoCheckpoint("stalled", for_s=600)


def _episodes(*rules: Rule, state: State | None = None) -> Episodes:
    return Episodes(rules, "orders", T0, state or State())


def _good(minute: float, batch: int = 1) -> Checkpoint:
    return ended(batch, triggered_ms=T0 + int(minute * MINUTE), took_ms=0.0)


def _bad(minute: float, batch: int = 1) -> Checkpoint:
    return failed(batch, "RetriableError", "away\nmore", triggered_ms=T0 + int(minute * MINUTE), took_ms=0.0)


def _at(episodes: Episodes, minute: float) -> list[tuple[str, str]]:
    return _said(episodes.check(T0 + int(minute * MINUTE)))


def _said(alerts: list[Alert]) -> list[tuple[str, str]]:
    return [(alert.rule, alert.status) for alert in alerts]


def test_an_alert_about_too_many_failures_in_the_window_fires_once_and_clears_once() -> None:
    episodes = _episodes(TOTAL)
    assert _at(episodes, 0) == []
    for minute in (1, 2, 3):
        assert episodes.ended(_bad(minute)) == []
    assert _at(episodes, 5) == [], "three failures are not more than three"
    episodes.ended(_bad(6))
    assert _at(episodes, 10) == [("failing", "firing")]
    assert _at(episodes, 15) == [], "the same episode"
    assert _at(episodes, 20) == [("failing", "over")], "only one failure is left in the window"
    assert _at(episodes, 25) == []


def test_failures_are_counted_only_when_a_check_runs() -> None:
    episodes = _episodes(TOTAL)
    _at(episodes, 0)
    for minute in (1, 1.1, 1.2, 1.3):
        assert episodes.ended(_bad(minute)) == []
    assert _at(episodes, 4.9) == []
    (alert,) = episodes.check(T0 + 5 * MINUTE)
    assert alert.text.startswith(
        "4 checkpoints failed within 15 min; at most 3 may fail. Last failure: checkpoint 1 failed in phase"
    )
    assert alert.text.endswith("RetriableError: away")
    assert (alert.query, alert.at_ms, alert.since_ms) == ("orders", T0 + 5 * MINUTE, T0 + 5 * MINUTE)


def test_a_growth_rule_compares_a_period_with_the_preceding_one() -> None:
    episodes = _episodes(GROWTH)
    for minute in (1, 4, 7, 11, 14, 17):
        episodes.ended(_bad(minute))
    assert _at(episodes, 20) == [], "three failures in the last ten minutes, and three in the ten minutes before"
    for minute in (21, 22, 23, 24, 25):
        episodes.ended(_bad(minute))
    assert _at(episodes, 26) == [("worse", "firing")], (
        "six failures in the last ten minutes, and three in the ten minutes before"
    )
    for minute in (30, 32, 34, 36):
        episodes.ended(_bad(minute))
    assert _at(episodes, 37) == [("worse", "over")]


def test_an_alert_about_consecutive_failures_fires_at_once_and_ends_with_a_completed_checkpoint() -> None:
    episodes = _episodes(BROKEN)
    assert [_said(episodes.ended(one)) for one in (_bad(1), _bad(2), _good(3), _bad(4), _bad(5))] == [[]] * 5
    assert _said(episodes.ended(_bad(6))) == [("broken", "firing")]
    assert episodes.ended(_bad(7)) == []
    assert _at(episodes, 8) == []
    (over,) = episodes.ended(_good(9))
    assert (over.status, over.since_ms, over.text) == ("over", T0 + 6 * MINUTE, "Resolved after 3 min.")
    assert [_said(episodes.ended(_bad(minute))) for minute in (10, 11, 12)] == [[], [], [("broken", "firing")]]


def test_the_time_without_a_completed_checkpoint_counts_from_the_last_one_or_from_the_beginning() -> None:
    episodes = _episodes(STALLED)
    assert _at(episodes, 10) == []
    assert _at(episodes, 10.1) == [("stalled", "firing")]
    episodes.ended(_bad(11))
    assert _at(episodes, 12) == [], "a failed checkpoint must not end the alert"
    assert _said(episodes.ended(_good(13))) == [("stalled", "over")]
    assert _at(episodes, 23) == []
    assert _at(episodes, 23.1) == [("stalled", "firing")]


def test_a_pause_in_the_source_raises_no_alert_if_only_planned_checkpoints_are_judged() -> None:
    episodes = _episodes(NoCheckpoint("stalled", for_s=600, is_of_planned=True))
    assert _at(episodes, 60) == []
    episodes.planned_ms = T0 + 60 * MINUTE
    assert _at(episodes, 61) == [], "the planned checkpoint is only a minute old"
    assert _at(episodes, 70.1) == [("stalled", "firing")]
    episodes.planned_ms = None
    assert _said(episodes.ended(_good(71))) == [("stalled", "over")]


def test_the_time_between_a_normal_end_and_the_next_start_does_not_count() -> None:
    episodes = _episodes(STALLED)
    episodes.ended(_good(1))
    episodes.begins_again(T0 + 60 * MINUTE)
    assert _at(episodes, 70) == []
    assert _at(episodes, 70.1) == [("stalled", "firing")]


def test_after_a_restart_an_episode_is_not_reported_again_but_its_end_is() -> None:
    state = State()
    first = _episodes(BROKEN, state=state)
    for minute in (1, 2, 3):
        first.ended(_bad(minute))
    again = _episodes(BROKEN, state=State(seen_ms=state.seen_ms, open=dict(state.open)))
    again.learn(_bad(minute) for minute in (1, 2, 3))
    assert _at(again, 4) == []
    assert _said(again.ended(_good(5))) == [("broken", "over")]


def test_checkpoints_from_the_history_count_and_a_removed_rule_is_forgotten() -> None:
    episodes = _episodes(BROKEN, state=State(open={"another": T0}))
    episodes.learn([_bad(1), _bad(2)])
    assert _said(episodes.ended(_bad(3))) == [("broken", "firing")]
    assert episodes.state.open == {"broken": T0 + 3 * MINUTE}


def test_a_clock_set_back_does_not_silence_a_rule() -> None:
    episodes = _episodes(TOTAL)
    _at(episodes, 1_000)
    for minute in (1, 2, 3, 4):
        episodes.ended(_bad(minute))
    assert _at(episodes, 5) == [("failing", "firing")]


def test_failures_that_no_rule_examines_any_more_are_forgotten() -> None:
    episodes = _episodes(TOTAL)
    for minute in range(1_000):
        episodes.ended(_bad(minute))
    assert len(episodes._failures) <= 20


def test_every_rule_links_to_an_entry_in_the_runbook() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    anchors = {line[4:].lower().replace(" ", "-") for line in text.splitlines() if line.startswith("### ")}
    assert {rule.runbook for rule in (FailedCheckpoints, ConsecutiveFailures, NoCheckpoint)} <= anchors


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: FailedCheckpoints("a"), "a.total"),
        (lambda: FailedCheckpoints("a", total=-1), "a.total"),
        (lambda: FailedCheckpoints("a", total=1, window_s=0), "a.window"),
        (lambda: ConsecutiveFailures("a", 0), "a.count"),
        (lambda: NoCheckpoint("a", for_s=0), "a.for"),
    ],
)
def test_the_error_for_an_out_of_range_value_mentions_its_key(make: object, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}: "):
        make()  # type: ignore[operator]


def test_by_default_a_stalled_query_is_reported_long_before_its_decided_transactions_expire() -> None:
    sink = KafkaSink(name="orders", topic="orders", bootstrap_servers="broker:9092")
    assert NoCheckpoint().for_s <= sink.transaction_timeout_ms / 3_000
