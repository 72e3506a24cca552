"""An InitProducerId arrives late: the broker aborts what is open under its id, whatever the epoch.

The one request of ours that no epoch makes harmless (``TransactionCoordinator.scala``, ``prepareInitProducerIdTransit``: a
transaction that is Ongoing is fenced for any epoch of its producer id). A task's, without an answer, spoils its id, which is
never used (rule 5). A sweep's may meet its id in use again: what it aborts is found out before the decision by rule 3, and
after it by rules 4 and 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sinks.kafka.reports import CONCURRENT
from tests.live.rules.batches import seen
from tests.live.rules.schedules import at, until
from tests.nemesis.frames import NONE, Api
from tests.nemesis.schedules import VoidFirst, of_tasks, process

if TYPE_CHECKING:
    from tests.live.rules.schedules import Play
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule
    from twopc.coordinator import Coordinator


def hold_a_sweep(play: Play, proxy: KafkaProxy, driver: Coordinator) -> Rule:
    """The first attempt at batch 0 is void; one request of its sweep is on its way still, a second one was answered."""
    held = proxy.on(
        Api.INIT_PRODUCER_ID, transactional_id=of_tasks(play), where=lambda request: request.body.producer_id >= 0
    ).hold()
    driver.process(play.batch(0), VoidFirst(play, 0))
    return held


@pytest.mark.parametrize("moment", ["driver.prepared", "driver.confirmed", "driver.decided"])
def test_what_a_late_sweep_aborts_is_written_again(play: Play, proxy: KafkaProxy, moment: str) -> None:
    """Before it is confirmed, between that and the decision, and when it is decided and not committed."""
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
    assert met is not None, "the id of the late sweep did not serve again, so nothing was tested"
    assert play.open_transactions() == ()


def test_an_id_whose_initialisation_had_no_answer_is_never_used(play: Play, proxy: KafkaProxy) -> None:
    """What the first task has asked for its first id arrives when a later batch's transactions are open."""
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
