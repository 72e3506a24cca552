"""A late InitProducerId makes the broker abort the open transaction of its id, at any epoch.

It is our only request that no epoch makes harmless (``TransactionCoordinator.scala``, ``prepareInitProducerIdTransit``:
an Ongoing transaction is fenced for any epoch of its producer id). If a task's request stays unanswered, its id is
never used (rule 5). A sweep's request may hit an id that is in use again: rule 3 finds the aborted transaction before
the decision, rules 4 and 9 find it afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.rules.batches import seen
from tests.live.rules.schedules import at, until
from tests.nemesis.frames import NONE, Api
from tests.nemesis.schedules import VoidFirst, of_tasks, process
from twopc.sinks.kafka.reports import CONCURRENT

if TYPE_CHECKING:
    from tests.live.rules.schedules import Play
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule
    from twopc.coordinator import Coordinator


def hold_a_sweep(play: Play, proxy: KafkaProxy, driver: Coordinator) -> Rule:
    """The first attempt at batch 0 fails. One request of its sweep is still on its way; a second one was answered."""
    held = proxy.on(
        Api.INIT_PRODUCER_ID, transactional_id=of_tasks(play), where=lambda request: request.body.producer_id >= 0
    ).hold()
    driver.process(play.batch(0), VoidFirst(play, 0))
    return held


@pytest.mark.parametrize(
    "moment", ["driver.prepared", pytest.param("driver.confirmed", marks=pytest.mark.whole), "driver.decided"]
)
def test_transactions_aborted_by_a_late_sweep_are_written_again(play: Play, proxy: KafkaProxy, moment: str) -> None:
    """The sweep strikes before the confirmation, between confirmation and decision, or between decision and commit."""
    driver = play.driver()
    held = hold_a_sweep(play, proxy, driver)
    late = held.wait()
    [tid] = late.request.transactional_ids
    met = None

    def arrive() -> None:
        nonlocal met
        if met is None and tid in play.open_transactions():
            met = batch
            held.release()
            assert late.answer() in {NONE, CONCURRENT}
            assert until(lambda: tid not in play.open_transactions())

    for batch in (1, 2, 3):
        with at(moment, arrive):
            prepared, _ = process(driver, play, batch)
        assert prepared == (2 if batch == met else 1)
        assert play.visible() == seen(batch + 1)
    assert met is not None, "the late sweep's id was not reused, so nothing was tested"
    assert play.open_transactions() == ()


def test_an_id_with_an_unanswered_initialization_is_never_used(play: Play, proxy: KafkaProxy) -> None:
    """The request for the first task's first id arrives while a later batch's transactions are open."""
    first_ids = f"{play.name}.*.{'?' * 32}.0"
    held = proxy.on(Api.INIT_PRODUCER_ID, transactional_id=first_ids, times=float("inf")).hold()
    driver = play.driver()
    assert process(driver, play, 0) == (2, 0)
    held.disarm()
    [spoiled] = {tid for late in held.hits for tid in late.request.transactional_ids}

    def arrive(_: int) -> None:
        held.release()
        assert until(lambda: all(late.response is not None for late in held.hits))

    for batch in (1, 2, 3):
        assert process(driver, play, batch, between=arrive) == (1, 0)
        assert play.visible() == seen(batch + 1)
    assert NONE in {late.answer() for late in held.hits}
    assert spoiled not in {handle.transactional_id for batch in range(4) for handle in play.decided(batch)}
