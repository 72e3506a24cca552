"""Rule 6, after a tolerated failure: tasks that outlive the failed checkpoint end and make nothing visible.

The driver keeps its epoch. So the failed checkpoint's transactions must have new ids, and be ended, whenever they began.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, record_batch
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import Play, at, writer_of
from twopc.checkpoint_config import CheckpointConfig
from twopc.checkpointing import PASSING, Checkpoints
from twopc.decision_log import DecisionLog
from twopc.errors import RetriableError, TwoPhaseCommitError
from twopc.listeners import Listeners
from twopc.settings import Settings

if TYPE_CHECKING:
    from twopc.coordinator import Coordinator
    from twopc.engine import Work
    from twopc.records import TaskReport
    from twopc.sinks.kafka.handle import KafkaHandle
    from twopc.sinks.kafka.writer import KafkaWriter


class WithStaleTask(Tasks):
    """The first checkpoint fails while its last task is at work in another worker, which has written its rows or not begun."""

    def __init__(self, play: Play, *, has_begun: bool) -> None:
        super().__init__(play, ROWS)
        self._play = play
        self._has_begun = has_begun
        self.writer: KafkaWriter | None = None
        self.voted: KafkaHandle | None = None

    def prepare(self, work: Work) -> list[TaskReport]:
        if self.writer is not None:
            return super().prepare(work)
        self.writer = writer_of(self._play, work, 1)
        if self._has_begun:
            self.writer.write_rows(record_batch(["stale"]))
            self.writer._begun.producer.flush(10)
        self._play.forget_worker()
        raise RetriableError("another task was lost")

    def go_on(self) -> None:
        assert self.writer is not None
        with suppress(TwoPhaseCommitError):
            self.writer.write_rows(record_batch(["c"]))
            self.voted = self.writer.snapshot_state(0)
            self.writer.hand_over()


def process(driver: Coordinator, play: Play, tasks: Tasks, batch: int, *, tolerable: int = 1) -> None:
    of = play.batch(batch)
    config = CheckpointConfig(tolerable_failures=tolerable)
    Checkpoints(config, Listeners(), "run", lambda _: None).complete(
        of,
        lambda pending, _: driver.process(of, tasks, pending),
        lambda error: isinstance(error, PASSING) and driver.is_undecided(of),
    )


@pytest.mark.parametrize("has_begun", [True, False], ids=["began_before_the_sweep", "begins_after_it"])
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("driver.confirmed", marks=pytest.mark.whole),
        "driver.decided",
        pytest.param("driver.committed", marks=pytest.mark.whole),
        "driver.swept",
    ],
)
def test_a_stale_task_that_continues_alongside_the_next_checkpoint_makes_nothing_visible(
    point: str, play: Play, *, has_begun: bool
) -> None:
    """Fails if the next checkpoint's tasks have the failed one's ids, or if its votes could be decided."""
    driver = play.driver(Settings(max_attempts=1))
    tasks = WithStaleTask(play, has_begun=has_begun)
    with at(point, tasks.go_on):
        process(driver, play, tasks, 0)
    assert (
        tasks.voted is None
    ) is has_begun  # an open transaction is fenced; one that began later votes, but its vote is ignored
    names = {handle.transactional_id for handle in play.decided(0)}
    assert tasks.voted is None or tasks.voted.transactional_id not in names
    process(driver, play, Tasks(play, [["d"]]), 1)  # the sweep ends the stale task's transaction if it is still open
    assert play.open_transactions() == ()
    assert tasks.voted is None or play.end(tasks.voted, commit=True) != "NONE"
    assert play.visible() == VISIBLE + type(VISIBLE)("d")


def test_a_refused_decision_is_made_again_by_the_next_checkpoint(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker refused the record, and its transaction was aborted: nothing is decided."""
    driver = play.driver(Settings(max_attempts=1))
    process(driver, play, Tasks(play, [["z"]]), 0)
    append, refusals = driver.log.append, [RetriableError("the ledger refused a record")]

    def refused_once(records: object) -> int:
        if refusals:
            raise refusals.pop()
        return append(records)  # type: ignore[arg-type]

    monkeypatch.setattr(driver.log, "append", refused_once)
    process(driver, play, Tasks(play, ROWS), 1)
    assert isinstance(driver.log, DecisionLog) and not refusals
    assert [decision.attempt.counter for decision in play.decisions()] == [1, 3]
    assert play.open_transactions() == ()
    assert play.visible() == VISIBLE + type(VISIBLE)("z")
