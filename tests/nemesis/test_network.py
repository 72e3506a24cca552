"""The other requests of a batch that the network hits: the look at the votes, the sweep, the writers' own."""

from __future__ import annotations

import random
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sinks.kafka.transactions import TransactionClient
from tests.live.rules.batches import rows_of, seen
from tests.live.rules.schedules import crash, until
from tests.nemesis.frames import Api
from tests.nemesis.rules import Selection
from tests.nemesis.schedules import of_driver, of_tasks, process
from twopc.errors import DecisionInDoubtError, FencedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule

FAULTS = [
    pytest.param(Selection.drop_request, id="request-dropped"),
    pytest.param(Selection.drop_response, id="response-dropped"),
    pytest.param(partial(Selection.close_connection, answered=True), id="connection-broken-after"),
]


@pytest.mark.parametrize("inject", FAULTS)
def test_votes_whose_confirmation_is_lost_are_looked_at_again(
    play: Play, proxy: KafkaProxy, inject: Callable[[Selection], Rule]
) -> None:
    """Rule 3: no answer confirms nothing, and is no reason to write the batch anew either."""
    rule = inject(proxy.on(Api.DESCRIBE_TRANSACTIONS, transactional_id=of_tasks(play)))
    assert process(play.driver(), play, 0) == (1, 0)
    assert rule.injected == 1
    again = [ask for ask in proxy.recorded(Api.DESCRIBE_TRANSACTIONS, of_tasks(play)) if ask.fault is None]
    assert again, "nobody has looked again"
    assert play.visible() == seen(1)


@pytest.mark.parametrize("inject", FAULTS)
def test_a_sweep_that_the_network_hits_is_made_complete(
    play: Play, proxy: KafkaProxy, inject: Callable[[Selection], Rule]
) -> None:
    """Rule 7: an orphan that is left open would hold back every reader of the output."""
    crash(play.driver(), play, 0, rows_of(0), "driver.confirmed")
    orphans = play.open_transactions()
    assert len(orphans) == 2
    rule = inject(proxy.on(Api.INIT_PRODUCER_ID, where=lambda request: request.transactional_ids[0] in orphans))
    driver = play.driver()
    driver.initialize_state(play.batch(0))
    assert rule.injected == 1
    assert until(lambda: play.open_transactions() == ())
    process(driver, play, 0)
    assert play.visible() == seen(1)


def test_a_listing_that_is_lost_leaves_the_orphans_to_the_next_sweep(play: Play, proxy: KafkaProxy) -> None:
    """Rule 7: it is reported, and fails no decided batch."""
    crash(play.driver(), play, 0, rows_of(0), "driver.confirmed")
    rule = proxy.on(Api.LIST_TRANSACTIONS).drop_response()
    assert process(play.driver(), play, 0) == (1, 0)
    assert rule.injected == 1
    assert until(lambda: play.open_transactions() == ())
    assert play.visible() == seen(1)


@pytest.mark.parametrize(
    "api", [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE], ids=lambda api: api.name
)
def test_a_tasks_request_that_arrives_twice_and_late_changes_nothing(play: Play, proxy: KafkaProxy, api: Api) -> None:
    """The first is held, its client asks again and goes on; the first arrives when its transaction is long committed.

    A late InitProducerId meets a producer that is no longer needed, a late AddPartitionsToTxn opens an empty transaction
    (KAFKA-14402) that the next sweep ends, a late Produce is in no transaction.
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
def test_a_drivers_request_that_arrives_twice_and_late_stops_it_at_worst(
    play: Play, proxy: KafkaProxy, api: Api
) -> None:
    """Its producer lives at one epoch, so it may be stopped; nothing is decided that was not, and a restart goes on.

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


def test_a_broker_that_is_silent_uses_up_its_share_of_the_time_only(
    kafka: KafkaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who connects begins with any of them by chance: twice with one that takes the connection and never answers."""
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        def by_chance(brokers: Any) -> Any:
            asked.append(port)
            return next(broker for broker in brokers if (broker.port == port) is (len(asked) <= 2))

        monkeypatch.setattr(random, "choice", by_chance)
        client = TransactionClient(
            {"bootstrap_servers": [f"127.0.0.1:{port}", kafka.bootstrap_servers], "bootstrap_timeout_ms": 8_000}
        )
    client.close()
    assert len(asked) == 3
