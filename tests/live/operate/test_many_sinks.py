"""One of many sinks on a cluster: the number of requests about the sink does not grow with the other sinks' open transactions."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, create_topic
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import crash, playing
from tests.nemesis.proxy import Api, KafkaProxy
from twopc.integration.operate.observe import observe
from twopc.sinks.kafka.transactions import TransactionClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService


@pytest.fixture
def other(kafka: KafkaService, tmp_path: Path) -> Iterator[Play]:
    """Another sink on the same cluster, whose driver has died after a decision."""
    with playing(kafka, tmp_path / "other") as other:
        crash(other.driver(), other, 0, ROWS, "driver.decided")
        yield other
        other.driver().process(other.batch(0), Tasks(other, ROWS))


def test_a_driver_does_not_receive_the_open_transactions_of_other_sinks(
    kafka: KafkaService, play: Play, other: Play
) -> None:
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        with closing(TransactionClient({"bootstrap_servers": [proxy.bootstrap_servers]})) as client:
            if client.pattern_of("s.") is None:
                pytest.skip("brokers before Kafka 4.1 list all transactions")
            found = client.list_open(f"{other.name}.").transactional_ids
            assert len(found) == len(ROWS)  # a pattern that matches nothing would prove nothing
        play.sink = dataclasses.replace(play.sink, bootstrap_servers=proxy.bootstrap_servers)
        play.driver().process(play.batch(0), Tasks(play, ROWS))
        sent = [exchange.wait().body.transaction_states for exchange in proxy.recorded(Api.LIST_TRANSACTIONS)]
    assert len(sent) > 1
    listed = {row.transactional_id for rows in sent[1:] for row in rows}
    assert not [tid for tid in listed if not tid.startswith(f"{play.name}.")]


def test_a_check_of_a_sink_does_not_request_the_transactions_of_other_sinks(
    kafka: KafkaService, play: Play, other: Play
) -> None:
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    with KafkaProxy(kafka.bootstrap_servers) as proxy:
        state = observe(dataclasses.replace(play.sink, bootstrap_servers=proxy.bootstrap_servers))
        asked = {
            tid for exchange in proxy.recorded(Api.DESCRIBE_TRANSACTIONS) for tid in exchange.request.transactional_ids
        }
    assert asked and not [tid for tid in asked if not tid.startswith(f"{play.name}.")]
    assert state.held
    assert all(one.transactional_id for one in state.held)  # the transactions that hold readers back are still named
    assert other.open_transactions()
    play.driver().process(play.batch(0), Tasks(play, ROWS))


def test_a_ledger_created_by_hand_may_have_two_partitions(kafka: KafkaService, play: Play) -> None:
    """As ``docs/performance.md`` advises where a cluster has many small sinks."""
    create_topic(kafka.bootstrap_servers, play.sink.ledger, 2, {"retention.ms": "-1", "retention.bytes": "-1"})
    crash(play.driver(), play, 0, ROWS, "driver.committing")
    play.forget_worker()
    driver = play.driver()
    driver.process(play.batch(0), Tasks(play, ROWS))
    driver.process(play.batch(1), Tasks(play, ROWS))
    assert play.visible() == VISIBLE + VISIBLE
    with closing(play.sink.create_decision_log()) as log:
        assert log.topic.marker_partitions() == [1]
