"""Rule 1: a fenced driver stays fenced, even if the broker has forgotten the drivers' transactional id in the meantime.

The fence is the epoch of the transactional id. A broker forgets an idle id (``transactional.id.expiration.ms``), and then
lets any producer register the id again, including a fenced one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import Play, at, playing, until
from twopc.errors import DecisionInDoubtError, FatalError, TwoPhaseCommitError
from twopc.sinks.kafka.driver_producer import DriverProducer
from twopc.sinks.kafka.handle import driver_id
from twopc.sinks.kafka.reports import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.services import KafkaService

pytestmark = pytest.mark.whole
FORGOTTEN = "forgotten the transactional id .*Another driver may have.*Restart the query"


@pytest.fixture
def play(forgetful: KafkaService, tmp_path: Path) -> Iterator[Play]:
    with playing(forgetful, tmp_path / "checkpoint") as play:
        yield play


def forget(play: Play) -> None:
    """Wait until the broker has forgotten the drivers' transactional id."""
    assert until(lambda: play.describe(driver_id(play.name)).error == NOT_FOUND)


def overtake(play: Play, batches: int) -> None:
    """Another driver starts, completes some batches, and ends. Then nothing runs for a long time."""
    second = play.driver()
    for batch in range(batches):
        second.process(play.batch(batch), Tasks(play, rows_of(batch)))
    play.forget_worker()  # its idle producers would be forgotten, too
    forget(play)


def test_a_fenced_driver_cannot_write_after_the_broker_has_forgotten_the_fence(play: Play) -> None:
    play.driver().recover(play.batch(0))  # creates the ledger
    fenced, successor = DriverProducer(play.sink, {}), DriverProducer(play.sink, {})
    forget(play)
    for _ in range(2):
        with pytest.raises(FatalError, match=FORGOTTEN):
            fenced.write([(0, b"a decision")], point=None)
    assert play.describe(driver_id(play.name)).error == NOT_FOUND  # it did not register the id again
    with pytest.raises(FatalError, match=FORGOTTEN):
        successor.write([(0, b"a decision")], point=None)


def test_a_forgotten_fence_does_not_let_a_paused_driver_decide_a_batch_again(play: Play) -> None:
    """The first driver is paused before its decision. Afterward, it triggers the checkpoint again, as a tolerant query does."""
    first = play.driver()
    with at("driver.confirmed", functools.partial(overtake, play, 1)), pytest.raises(FatalError, match=FORGOTTEN):
        first.process(play.batch(0), Tasks(play, rows_of(0)))
    with pytest.raises(TwoPhaseCommitError):
        first.process(play.batch(0), Tasks(play, rows_of(0)))
    assert play.visible() == seen(1)


def test_a_forgotten_fence_does_not_let_a_paused_driver_prove_its_commit_and_continue(play: Play) -> None:
    """The first driver is paused after its decision. Its successor commits that decision, and the next batch."""
    first = play.driver()
    with at("driver.decided", functools.partial(overtake, play, 2)), pytest.raises(FatalError, match=FORGOTTEN):
        first.process(play.batch(0), Tasks(play, rows_of(0)))
    with pytest.raises(TwoPhaseCommitError):
        first.process(play.batch(1), Tasks(play, rows_of(1)))
    assert play.visible() == seen(2)


def test_an_abort_that_registers_a_forgotten_id_again_proves_nothing(play: Play) -> None:
    """The driver is paused within a decision. Its successor aborts that transaction, so only the driver's abort finds out."""
    play.driver().recover(play.batch(0))
    paused = DriverProducer(play.sink, {})
    paused._producer.begin_transaction()
    paused._producer.produce(play.sink.ledger, b"a decision", partition=0)
    assert paused._producer.flush(30) == 0
    DriverProducer(play.sink, {})
    forget(play)
    assert not paused._abort()
    with pytest.raises((FatalError, DecisionInDoubtError), match=FORGOTTEN):
        paused.write([(0, b"a decision")], point=None)
