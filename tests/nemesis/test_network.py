"""The network hits the other requests of a batch: the confirmation, the sweep, the writers' own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import crash, until
from tests.nemesis.frames import Api
from tests.nemesis.rules import Selection
from tests.nemesis.schedules import of_driver, of_tasks, process
from twopc.errors import DecisionInDoubtError, FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.rules.schedules import Play
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule

FAULTS = [
    pytest.param(Selection.drop_request, id="request-dropped"),
    pytest.param(Selection.drop_response, id="response-dropped"),
    pytest.param(partial(Selection.close_connection, answered=True), id="connection-broken-after"),
]


@pytest.mark.parametrize("inject", FAULTS)
def test_a_lost_confirmation_is_repeated(play: Play, proxy: KafkaProxy, inject: Callable[[Selection], Rule]) -> None:
    """Rule 3: a missing response confirms nothing, but does not make the batch be written again either."""
    rule = inject(proxy.on(Api.DESCRIBE_TRANSACTIONS, transactional_id=of_tasks(play)))
    assert process(play.driver(), play, 0) == (1, 0)
    assert rule.injected == 1
    again = [ask for ask in proxy.recorded(Api.DESCRIBE_TRANSACTIONS, of_tasks(play)) if ask.fault is None]
    assert again, "the confirmation was not repeated"
    assert play.visible() == seen(1)


@pytest.mark.parametrize("inject", FAULTS)
def test_a_sweep_with_a_lost_request_is_completed(
    play: Play, proxy: KafkaProxy, inject: Callable[[Selection], Rule]
) -> None:
    """Rule 7: an open orphan would hold back every reader of the output."""
    crash(play.driver(), play, 0, rows_of(0), "driver.confirmed")
    orphans = play.open_transactions()
    assert len(orphans) == 2
    rule = inject(proxy.on(Api.INIT_PRODUCER_ID, where=lambda request: request.transactional_ids[0] in orphans))
    driver = play.driver()
    driver.recover(play.batch(0))
    assert rule.injected == 1
    assert until(lambda: play.open_transactions() == ())
    process(driver, play, 0)
    assert play.visible() == seen(1)


def test_orphans_missed_because_a_listing_was_lost_are_left_to_the_next_sweep(play: Play, proxy: KafkaProxy) -> None:
    """Rule 7: the lost listing is reported, and fails no decided batch."""
    crash(play.driver(), play, 0, rows_of(0), "driver.confirmed")
    rule = proxy.on(Api.LIST_TRANSACTIONS).drop_response()
    assert process(play.driver(), play, 0) == (1, 0)
    assert rule.injected == 1
    assert until(lambda: play.open_transactions() == ())
    assert play.visible() == seen(1)


@pytest.mark.parametrize(
    "api", [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE], ids=lambda api: api.name
)
def test_a_tasks_request_that_arrives_twice_changes_nothing(play: Play, proxy: KafkaProxy, api: Api) -> None:
    """The first copy is held and its client retries it; the first copy arrives long after the transaction is committed.

    A late InitProducerId meets a producer that is no longer needed, a late AddPartitionsToTxn opens an empty transaction
    (KAFKA-14402) that the next sweep ends, a late Produce belongs to no transaction.
    """
    held = proxy.on(api, transactional_id=of_tasks(play)).hold()
    driver = play.driver()
    process(driver, play, 0)
    late = held.wait()
    assert play.visible() == seen(1)
    held.release()
    late.wait()
    assert play.visible() == seen(1)
    for batch in (1, 2):
        process(driver, play, batch)
        assert play.visible() == seen(batch + 1)
    assert until(lambda: play.open_transactions() == ())
    assert play.plans() == ["write"] * 3


@pytest.mark.parametrize(
    "api", [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE], ids=lambda api: api.name
)
def test_a_drivers_request_that_arrives_twice_at_worst_stops_the_driver(
    play: Play, proxy: KafkaProxy, api: Api
) -> None:
    """The driver's producer keeps one epoch, so the driver may stop. It makes no wrong decision, and a restart continues.

    A late InitProducerId fences it. After a late Produce, itself refused, Kafka 4.3 refuses the next as out of order.
    """
    held = proxy.on(api, transactional_id=of_driver(play)).hold()
    driver = play.driver()
    process(driver, play, 0)
    late = held.wait()
    held.release()
    late.wait()
    assert play.visible() == seen(1)
    try:
        process(driver, play, 1)
    except (FencedError, DecisionInDoubtError):
        assert play.visible() == seen(1)
        driver = play.driver()
        assert process(driver, play, 1) == (1, 0)
    process(driver, play, 2)
    assert [decision.batch_id for decision in play.decisions()] == [0, 1, 2]
    assert play.visible() == seen(3)
    assert play.open_transactions() == ()
