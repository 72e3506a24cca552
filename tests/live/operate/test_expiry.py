"""No operator acted in time: the broker itself aborts the decided transactions, and the commands say what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import ask
from tests.live.pipeline import Tasks
from tests.live.rules.batches import ROWS, VISIBLE
from tests.live.rules.schedules import crash, playing, until
from tests.live.services import KafkaService, chosen
from twopc.integration.services.kafka import LocalKafka

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.whole
def test_decided_transactions_are_reported_before_and_after_they_expire(tmp_path: Path) -> None:
    if chosen() != "local":
        pytest.skip("this test needs a broker with special properties")
    prompt = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    short = {"options": {"kafka.transaction.timeout.ms": 20_000}}
    with LocalKafka(properties=prompt) as kafka:
        service = KafkaService(kafka.bootstrap_servers)
        with playing(service, tmp_path / "checkpoint", **short) as play:
            crash(play.driver(), play, 0, ROWS, "driver.decided")
            [listed] = ask(play, "transactions", "list", play.name, "--json").facts
            assert all(0 < one["expires_in_s"] <= 20 for one in listed["transactions"])
            assert until(lambda: play.open_transactions() == (), 60)
            found = ask(play, "status", play.name, "--json")
            [advice] = found.facts["sinks"][0]["advice"]
            assert advice["runbook"].endswith("#a-decided-transaction-is-lost")
            [resolved] = ask(play, "resolve", play.name, "--json").facts
            assert resolved["case"] == "all lost"
            play.forget_worker()
            driver = play.driver()
            driver.process(play.batch(0), Tasks(play, ROWS))  # as `resolve` said, the batch is written again
            assert play.visible() == VISIBLE
            driver.close()
