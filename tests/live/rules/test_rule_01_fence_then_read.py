"""Rule 1: fence, append a record, read up to that record, then act.

Without this rule, B reads "N undecided", A decides N and commits T1, B aborts T2: a torn batch. Or B reads from an isolated old
leader, misses decision N and writes the batch again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, crash, playing
from twopc.attempt import Claim
from twopc.batch_transaction import BatchTransaction
from twopc.errors import FencedError, RetriableError
from twopc.pending import Pending
from twopc.recovery import Step
from twopc.sinks.kafka.decision_log import KafkaDecisionLog

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

ZERO = [["a0", "b0"], ["c0"]]
ONE = [["a1", "b1"], ["c1"]]


def seen(*batches: list[list[str]]) -> Counter[str]:
    return Counter(row for rows in batches for task in rows for row in task)


@pytest.mark.parametrize("died_at", ["driver.decided", "driver.committed"])
def test_a_decision_between_the_successors_inspection_and_its_fence_is_found(play: Play, died_at: str) -> None:
    """Fails if a driver acts on what it inspected before it fenced."""
    first, second = play.driver(), play.driver()
    first.process(play.batch(0), Tasks(play, ZERO))
    replay = Tasks(play, ONE)
    with at("driver.inspected", lambda: crash(first, play, 1, ONE, died_at)):
        second.process(play.batch(1), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert [(d.batch_id, d.kind) for d in play.decisions()] == [(0, "write"), (1, "write")]
    assert play.visible() == seen(ZERO, ONE)


def test_a_repeated_acquisition_does_not_fence_a_newer_driver(play: Play) -> None:
    """The coordinator acquires the deciding log, then each sink, and the log may be a sink's own.

    Fails if `acquire` ignores that it already holds the log for this run.
    """
    claim = Claim(query_id=play.batch(0).query_id, run="a run", deciding_log=play.sink.ledger)
    with contextlib.closing(play.sink.create_decision_log()) as fenced:
        driver_epoch = fenced.acquire(claim)
        successor = play.driver()
        successor.process(play.batch(0), Tasks(play, ZERO))
        assert fenced.acquire(claim) == driver_epoch
        successor.process(play.batch(1), Tasks(play, ONE))
        with pytest.raises(FencedError):
            fenced.write([(0, b"decision")])
    assert play.visible() == seen(ZERO, ONE)


def test_a_driver_fenced_while_preparing_decides_nothing(play: Play) -> None:
    """Fails if each run has its own driver id, so that no run is fenced."""
    first, second = play.driver(), play.driver()
    successor = Tasks(play, [["b says a0"], ["b says c0"]])
    with pytest.raises(FencedError), at("driver.confirmed", lambda: second.process(play.batch(0), successor)):
        first.process(play.batch(0), Tasks(play, ZERO))
    assert [decision.attempt.driver_epoch for decision in play.decisions()] == [second.log_epoch]
    assert play.visible() == Counter(["b says a0", "b says c0"])
    assert play.open_transactions() == ()


def test_a_fenced_drivers_rows_never_become_visible_even_before_its_successor_writes(play: Play) -> None:
    """A is about to decide when B has acquired the sink and not decided yet. Fails if each run has its own driver id."""
    first, second = play.driver(), play.driver()

    def let_the_first_decide() -> None:
        with pytest.raises(FencedError):
            transaction.decide(prepared)
        assert play.visible() == Counter()

    run = first.recover(play.batch(0))
    transaction = BatchTransaction(run, play.batch(0), Tasks(play, ZERO), Pending())
    prepared = transaction.prepare(Step.WRITE)
    with at("driver.acquired", let_the_first_decide):
        second.process(play.batch(0), Tasks(play, ONE))
    assert play.visible() == seen(ONE)
    assert play.open_transactions() == ()


def test_a_pending_decision_is_aborted_by_the_acquisition_and_its_driver_fenced(play: Play) -> None:
    """The record is written but uncommitted: B cannot read it and must end it. Fails if each run has its own driver id."""
    first, second = play.driver(), play.driver()
    successor = Tasks(play, ONE)
    with pytest.raises(FencedError), at("driver.deciding", lambda: second.process(play.batch(0), successor)):
        first.process(play.batch(0), Tasks(play, ZERO))
    assert len(play.decisions()) == 1
    assert play.visible() == seen(ONE)


def test_a_driver_may_commit_its_decision_alongside_its_successor_but_makes_no_further_decision(play: Play) -> None:
    """Both commit the same decision: nothing is torn or duplicated, and only the successor continues."""
    first, second = play.driver(), play.driver()
    replay = Tasks(play, ZERO)
    with at("driver.decided", lambda: second.process(play.batch(0), replay)):
        first.process(play.batch(0), Tasks(play, ZERO))
    assert (replay.prepared, replay.evaluated) == (0, 1)
    with pytest.raises(FencedError):
        first.process(play.batch(1), Tasks(play, [["late"]]))
    second.process(play.batch(1), Tasks(play, ONE))
    assert play.visible() == seen(ZERO, ONE)


def test_a_driver_that_cannot_read_up_to_its_own_acquisition_does_not_act(
    kafka: KafkaService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign open transaction hides A's decision from B, as an isolated old leader would.

    Fails if reading stops at the last stable offset.
    """
    monkeypatch.setattr(KafkaDecisionLog, "_read_back", lambda *_: None)  # without this, rule 12 would stop A
    with playing(kafka, tmp_path, timeout_ms=4_000) as play:
        first, second = play.driver(), play.driver()
        first.process(play.batch(0), Tasks(play, ZERO))
        foreign = play.open_foreign(f"somebody-{play.name}", play.sink.ledger, 0)
        crash(first, play, 1, ONE, "driver.decided")
        replay = Tasks(play, ONE)
        with pytest.raises(RetriableError, match="could not be read up to"):
            second.process(play.batch(1), replay)
        assert (replay.prepared, replay.evaluated) == (0, 0)
        assert play.visible() == seen(ZERO)  # and A's prepared transactions stay as they are
        assert len(play.open_transactions()) == 2

        foreign.abort_transaction(10)
        play.driver().process(play.batch(1), replay)
        assert (replay.prepared, replay.evaluated) == (0, 1)
        assert play.visible() == seen(ZERO, ONE)


def test_a_refused_start_does_not_fence_the_healthy_driver(play: Play) -> None:
    """Fails if `acquire` comes before the read-only checks."""
    healthy = play.driver()
    healthy.process(play.batch(0), Tasks(play, ZERO))
    with pytest.raises(Exception, match="belongs to query"):
        play.driver().process(play.batch(0, query_id="another"), Tasks(play, ZERO))
    healthy.process(play.batch(1), Tasks(play, ONE))
    assert play.visible() == seen(ZERO, ONE)
    assert len(play.acquisitions()) == 1
