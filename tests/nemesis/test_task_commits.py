"""The network between the driver's committing client and the broker loses, breaks or duplicates EndTxn of tasks.

Rules 4 and 5: unanswered requests are retried; late and duplicate ones meet a past epoch or a committed transaction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import crash, until
from tests.nemesis.frames import FENCED, NONE, Api
from tests.nemesis.rules import Selection
from tests.nemesis.schedules import VoidFirst, of_tasks, process
from twopc.errors import CommitBlockedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.rules.schedules import Play
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule

FAULTS = [
    pytest.param(Selection.drop_request, id="request-dropped"),
    pytest.param(Selection.drop_response, id="response-dropped"),
    pytest.param(Selection.close_connection, id="connection-broken-before"),
    pytest.param(partial(Selection.close_connection, answered=True), id="connection-broken-after"),
    pytest.param(partial(Selection.delay, seconds=0.3), id="request-delayed"),
]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("inject", FAULTS)
def test_a_commit_hit_by_a_network_fault_is_repeated_and_commits_once(
    play: Play, proxy: KafkaProxy, inject: Callable[[Selection], Rule], nth: int
) -> None:
    driver = play.driver()
    rule = inject(proxy.on(Api.END_TXN, transactional_id=of_tasks(play), committed=True, nth=nth))
    assert process(driver, play, 0) == (1, 0)
    assert rule.injected == 1
    assert play.visible() == seen(1)
    # Each transaction was confirmed by some response.
    confirmed = {
        end.request.transactional_ids
        for end in proxy.recorded(Api.END_TXN, of_tasks(play))
        if end.response is not None and end.response.error == NONE
    }
    assert confirmed == {(handle.transactional_id,) for handle in play.decided(0)}
    assert process(driver, play, 1) == (1, 0)
    assert play.visible() == seen(2)
    assert play.plans() == ["write", "write"]


def test_an_unanswered_commit_is_proven_by_its_marker(play: Play, proxy: KafkaProxy) -> None:
    """Rule 4: the broker has committed and every response is lost, so the markers prove it."""
    proxy.on(Api.END_TXN, transactional_id=of_tasks(play), committed=True, times=float("inf")).drop_response()
    assert process(play.driver(), play, 0) == (1, 0)
    assert play.visible() == seen(1)


def test_a_commit_that_never_arrives_stops_the_query_and_the_restart_commits_it(play: Play, proxy: KafkaProxy) -> None:
    """Rule 4: silence proves nothing. Decided transactions stay prepared; they are neither visible nor rewritten."""
    lost = proxy.on(Api.END_TXN, transactional_id=of_tasks(play), times=float("inf")).drop_request()
    with pytest.raises(CommitBlockedError):
        process(play.driver(), play, 0)
    assert not play.visible()
    lost.disarm()
    assert process(play.driver(), play, 0) == (0, 1)
    assert play.visible() == seen(1)


def test_every_earlier_commit_is_harmless_when_it_arrives_again(play: Play, proxy: KafkaProxy) -> None:
    """Rule 5: the bytes of batches 0 to n are replayed while n+1 is half written, and again after its decision."""
    met = set()

    def replay(_: int) -> None:
        opened = play.open_transactions()
        assert opened
        for end in proxy.recorded(Api.END_TXN, of_tasks(play)):
            answer = proxy.replay(end)
            [tid] = end.request.transactional_ids
            if tid in opened:
                met.add(tid)
                assert answer in FENCED
        assert play.open_transactions() == opened

    driver = play.driver()
    for batch in range(5):
        process(driver, play, batch, between=replay)
        assert play.visible() == seen(batch + 1)
        replay_all(proxy, play)
        assert play.visible() == seen(batch + 1)
    assert met, "no id had a new open transaction when an old commit arrived, so nothing was tested"
    assert play.open_transactions() == ()


def replay_all(proxy: KafkaProxy, play: Play) -> None:
    for end in proxy.recorded(Api.END_TXN, of_tasks(play)):
        proxy.replay(end)


def test_old_commits_of_a_driver_are_harmless_after_its_successor_has_written(play: Play, proxy: KafkaProxy) -> None:
    """Two drivers: the first one's commits arrive again when the second has decided its own batches."""
    process(play.driver(), play, 0)
    successor = play.driver()
    for batch in (0, 1, 2):
        assert process(successor, play, batch) == ((0, 1) if batch == 0 else (1, 0))
        replay_all(proxy, play)
    assert play.visible() == seen(3)


def test_a_late_end_of_a_swept_transaction_changes_nothing(play: Play) -> None:
    """EndTxn, commit and abort, for swept transactions, while that worker's ids serve later batches."""
    driver, tasks = play.driver(), VoidFirst(play, 0)
    driver.process(play.batch(0), tasks)
    answers: set[str] = set()

    def forge(_: int) -> None:
        opened = play.open_transactions()
        answers.update(play.end(handle, commit=commit) for handle in tasks.void for commit in (True, False))
        assert play.open_transactions() == opened

    for batch in (1, 2, 3):
        process(driver, play, batch, between=forge)
        assert play.visible() == seen(batch + 1)
    assert answers <= FENCED
    assert answers


def test_a_late_abort_of_a_committed_transaction_is_refused(play: Play) -> None:
    driver = play.driver()
    process(driver, play, 0)
    assert {play.end(handle, commit=False) for handle in play.decided(0)} == {"InvalidTxnStateError"}
    assert play.visible() == seen(1)
    process(driver, play, 1)
    assert play.visible() == seen(2)


def test_a_commit_held_across_a_restart_may_arrive_after_the_next_batch(play: Play, proxy: KafkaProxy) -> None:
    """The driver dies with its commits on their way. The next driver commits and continues; then they arrive."""
    held = proxy.on(Api.END_TXN, transactional_id=of_tasks(play), committed=True).hold()
    crash(play.driver(), play, 0, rows_of(0), "driver.decided")
    successor = play.driver()
    assert process(successor, play, 0) == (0, 1)
    late = held.wait()
    assert late.response is None
    assert play.visible() == seen(1)
    process(successor, play, 1)
    held.release()
    assert late.answer() in FENCED | {NONE}
    assert until(lambda: play.open_transactions() == ())
    assert play.visible() == seen(2)
