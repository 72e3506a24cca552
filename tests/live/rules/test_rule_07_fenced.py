"""Rule 7: transactions that a fenced driver had prepared do not stay open, even if its successor waits for input for hours.

At startup, the successor ends the transactions that exist. The fenced driver itself ends later transactions, once it
has read its successor's record. All its possible decisions precede that record (rule 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE, rows_of, seen
from tests.live.rules.schedules import at, die
from tests.live.rules.test_rule_07_undecided import require_nothing_open
from twopc.attempt import Claim
from twopc.errors import FencedError
from twopc.records import Acquired
from twopc.sinks.kafka.decision_log import KafkaDecisionLog
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.live.rules.schedules import Play
    from twopc.engine import Work
    from twopc.records import Record, TaskReport


class After(Tasks):
    """Tasks that begin after something else has happened, and after the driver has learned where markers begin."""

    def __init__(self, play: Play, act: Callable[[], object]) -> None:
        super().__init__(play, ROWS)
        self._act = act

    def prepare(self, work: Work) -> list[TaskReport]:
        self._act()
        return super().prepare(work)


def test_a_successor_ends_its_predecessors_prepared_transactions_when_it_starts(play: Play) -> None:
    """Fails if only the end of the successor's first batch ends them: it may wait for input for hours."""
    first, second = play.driver(), play.driver()
    open_before: list[int] = []

    def take_over() -> None:
        open_before.append(len(play.open_transactions()))
        second.recover(play.batch(0))
        require_nothing_open(play)

    with pytest.raises(FencedError), at("driver.confirmed", take_over):
        first.process(play.batch(0), Tasks(play, ROWS))
    assert open_before == [len(ROWS)]
    require_nothing_open(play)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_fenced_driver_ends_transactions_that_it_prepared_after_its_successor_had_started(
    play: Play, batch: int
) -> None:
    """Fails if the fenced driver spares the transactions that it was about to decide: no one else would end them."""
    first, second = play.driver(), play.driver()
    for done in range(batch):
        first.process(play.batch(done), Tasks(play, rows_of(done)))
    with pytest.raises(FencedError):
        first.process(play.batch(batch), After(play, lambda: second.recover(play.batch(batch))))
    require_nothing_open(play)
    assert play.visible() == seen(batch)
    second.process(play.batch(batch), Tasks(play, rows_of(batch)))
    assert play.visible() == seen(batch + 1)
    require_nothing_open(play)


def test_a_driver_fenced_before_its_successor_has_written_a_record_leaves_its_rows_to_the_successor(play: Play) -> None:
    """The fence comes before the record.

    Fails if neither driver ends the transactions of these rows, or if a fence without a record counts as a proof.
    """
    first, second = play.driver(), play.driver()

    def decide() -> None:
        with pytest.raises(FencedError):
            first.process(play.batch(0), Tasks(play, ROWS))
        assert len(play.open_transactions()) == len(ROWS)

    first.recover(play.batch(0))
    with at("driver.fenced", decide):
        second.recover(play.batch(0))
    require_nothing_open(play)


@pytest.mark.parametrize("is_acquired", [False, True])
def test_a_fenced_driver_spares_the_transactions_that_its_successor_finds_decided(
    play: Play, monkeypatch: pytest.MonkeyPatch, *, is_acquired: bool
) -> None:
    """The driver's decision was written, but the response said that it was fenced.

    Fails if the error counts instead of the log.
    """
    first = play.driver()
    first.recover(play.batch(0))
    really = KafkaDecisionLog.append

    def append(log: KafkaDecisionLog, records: Sequence[Record]) -> int:
        first_offset = really(log, records)
        if isinstance(records[0], Acquired):
            return first_offset
        if is_acquired:
            other = play.sink.create_decision_log()
            other.acquire(Claim(query_id=play.query_id, run="successor", deciding_log=other.name))
            other.close()
        raise FencedError("as it seems")

    with monkeypatch.context() as patched:
        patched.setattr(KafkaDecisionLog, "append", append)
        with pytest.raises(FencedError):
            first.process(play.batch(0), Tasks(play, ROWS))
    assert len(play.open_transactions()) == len(ROWS)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert (replay.prepared, play.visible()) == (0, VISIBLE)
    require_nothing_open(play)


def test_transactions_of_a_driver_that_dies_after_its_successor_starts_are_ended_with_the_next_batch(
    play: Play,
) -> None:
    """No one else can end them: until then, or until they time out, they hold readers back (docs/protocol.md)."""
    first, second = play.driver(), play.driver()
    with pytest.raises(InjectedFault), at("driver.confirmed", die):
        first.process(play.batch(0), After(play, lambda: second.recover(play.batch(0))))
    assert len(play.open_transactions()) == len(ROWS)
    second.process(play.batch(0), Tasks(play, ROWS))
    require_nothing_open(play)
    assert play.visible() == VISIBLE
