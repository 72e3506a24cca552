"""The network between the driver's producer and the broker: the commit of a decision is lost, duplicated, or late.

Rule 12. librdkafka retries EndTxn by itself; the driver must neither trust it blindly nor decide twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.live.rules.batches import seen
from tests.live.rules.schedules import at, spied_read_backs
from tests.nemesis.frames import FENCED, NONE, Api
from tests.nemesis.rules import Selection
from tests.nemesis.schedules import of_driver, of_tasks, process, rivals
from twopc.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from tests.live.rules.schedules import Play
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule

FAULTS = [
    pytest.param(Selection.drop_request, id="request-dropped"),
    pytest.param(Selection.drop_response, id="response-dropped"),
    pytest.param(Selection.close_connection, id="connection-broken-before"),
    pytest.param(partial(Selection.close_connection, answered=True), id="connection-broken-after"),
]


@pytest.mark.parametrize("inject", FAULTS)
def test_a_decision_whose_commit_is_lost_in_the_network_is_read_back_and_not_repeated(
    play: Play, proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch, inject: Callable[[Selection], Rule]
) -> None:
    read_back = spied_read_backs(monkeypatch)
    driver = play.driver()
    driver.recover(play.batch(0))
    read_back.clear()
    rule = inject(proxy.on(Api.END_TXN, transactional_id=of_driver(play), committed=True))
    assert process(driver, play, 0) == (1, 0)
    assert rule.injected == 1
    assert len(read_back) == 1
    assert len(play.decisions()) == 1
    assert play.visible() == seen(1)
    process(driver, play, 1)
    assert play.visible() == seen(2)


def test_a_decision_that_arrives_after_a_successors_acquisition_is_fenced(
    play: Play, proxy: KafkaProxy, elsewhere: ThreadPoolExecutor
) -> None:
    """Rule 1: the successor has aborted the pending record, found no decision, and written the batch."""
    loser, successor = rivals(play)
    epoch = play.describe(of_driver(play)).producer_epoch
    of_loser = proxy.on(
        Api.END_TXN,
        transactional_id=of_driver(play),
        where=lambda request: request.body.producer_epoch == epoch,
        times=float("inf"),  # the loser's client repeats the request, however long the successor takes
    )
    held = of_loser.hold()
    losing = elsewhere.submit(process, loser, play, 0)
    late = held.wait()
    assert process(successor, play, 0) == (1, 0)
    held.release()
    assert late.answer() in FENCED
    assert isinstance(losing.exception(30), FencedError)
    assert process(successor, play, 1) == (1, 0)
    assert [decision.attempt.driver_epoch for decision in play.decisions()] == [successor.log_epoch] * 2
    assert play.visible() == seen(2)


def test_a_successor_commits_a_decision_whose_commit_never_got_a_response(
    play: Play, proxy: KafkaProxy, elsewhere: ThreadPoolExecutor
) -> None:
    """The broker has committed the record; its response is lost. The successor finds the decision."""
    loser, successor = rivals(play)
    lost = proxy.on(Api.END_TXN, transactional_id=of_driver(play), committed=True, times=float("inf")).drop_response()
    losing = elsewhere.submit(process, loser, play, 0)
    assert lost.wait().answer() == NONE
    lost.disarm()  # the successor receives its responses
    assert process(successor, play, 0) == (0, 1)
    assert losing.exception(60) is None or isinstance(losing.exception(), FencedError)
    assert process(successor, play, 1) == (1, 0)
    assert [decision.batch_id for decision in play.decisions()] == [0, 1]
    assert play.visible() == seen(2)


def test_a_driver_fenced_while_waiting_neither_commits_nor_sweeps_its_successors_transactions(
    play: Play, proxy: KafkaProxy, elsewhere: ThreadPoolExecutor
) -> None:
    """The responses to the old driver's commits of a decided batch arrive when the successor has prepared the next batch."""
    loser, successor = rivals(play)
    held = proxy.on(Api.END_TXN, transactional_id=of_tasks(play), committed=True).hold_response()
    losing = elsewhere.submit(process, loser, play, 0)
    held.wait()
    assert process(successor, play, 0) == (0, 1)

    def release_the_loser() -> None:
        held.release()
        assert losing.exception(60) is None, "the loser's batch is committed and proven, so the loser must not fail"

    with at("driver.confirmed", release_the_loser):
        process(successor, play, 1)
    with pytest.raises(FencedError):
        process(loser, play, 1)
    assert play.plans() == ["write", "write"]
    assert play.visible() == seen(2)
    assert all(end.answer() == NONE for end in proxy.recorded(Api.END_TXN, of_tasks(play)) if end.response)
