"""Brokers that support only older versions of Kafka's requests, as some brokers other than Kafka do.

The broker is real.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.live.rules.schedules import crash, playing
from tests.nemesis.frames import Api
from tests.nemesis.proxy import KafkaProxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService

#: Redpanda's newest request versions, from its source of 2024-12-20 (docs/brokers.md).
OF_REDPANDA = {Api.FIND_COORDINATOR: 3, Api.METADATA: 8, Api.END_TXN: 3, Api.INIT_PRODUCER_ID: 3}


@pytest.mark.parametrize("point", ["driver.confirmed", "driver.decided"])
def test_a_killed_driver_is_recovered_with_requests_as_old_as_redpandas(
    kafka: KafkaService, tmp_path: Path, point: str
) -> None:
    """FindCoordinator before v4 handles one id; the ledger has no topic id before Metadata v10."""
    rows = [["a", "b"], ["c"], ["d"]]
    with (
        KafkaProxy(kafka.bootstrap_servers, newest=OF_REDPANDA) as proxy,
        playing(kafka, tmp_path) as play,
    ):
        play.sink = dataclasses.replace(play.sink, bootstrap_servers=proxy.bootstrap_servers)
        asked = proxy.on(Api.FIND_COORDINATOR, times=math.inf).watch()
        crash(play.driver(), play, 0, rows, point)
        play.driver().process(play.batch(0), Tasks(play, rows))
        play.driver().process(play.batch(1), Tasks(play, [["e"]]))
        requests = [hit.request for hit in asked.hits]
        assert max(request.version for request in requests) <= OF_REDPANDA[Api.FIND_COORDINATOR]
        assert len({tid for request in requests for tid in request.transactional_ids}) > len(rows)
        assert play.visible() == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}


def test_a_query_continues_when_an_upgrade_of_the_brokers_brings_topic_ids(kafka: KafkaService, tmp_path: Path) -> None:
    """Fails if the zero UUID, which stands for no id, counts as the id of another ledger."""
    with KafkaProxy(kafka.bootstrap_servers, newest=OF_REDPANDA) as proxy, playing(kafka, tmp_path) as play:
        upgraded = play.sink
        play.sink = dataclasses.replace(upgraded, bootstrap_servers=proxy.bootstrap_servers)
        play.driver().process(play.batch(0), Tasks(play, [["before"]]))
        play.forget_worker()
        play.sink = upgraded
        play.driver().process(play.batch(1), Tasks(play, [["after"]]))
        play.driver().process(play.batch(2), Tasks(play, [["later"]]))
        assert play.visible() == {"before": 1, "after": 1, "later": 1}
