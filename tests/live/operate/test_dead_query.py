"""A real query whose driver is killed between its decision and the commit, and an operator who has only these commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import command
from tests.live.spark_support import KILLED, Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService


@pytest.mark.whole
def test_an_operator_makes_a_dead_querys_decision_visible_and_its_restart_continues(
    kafka: KafkaService, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka.bootstrap_servers, tmp_path)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    try:
        pipeline.feed(50)
        run = pipeline.process("driver.decided=kill")
        assert run.ended() == KILLED, run.text[-3000:]
        found = command("status", pipeline.options.checkpoint, *servers, "--json")
        assert found.status == 1
        [sink] = found.facts["sinks"]
        assert [one["runbook"].partition("#")[2] for one in sink["advice"]] == ["decided-and-not-committed"]
        assert (sink["last_decided"], sink["last_committed"]) == (0, None)
        assert (found.facts["checkpoint"]["last_planned"], found.facts["checkpoint"]["last_finished"]) == (0, None)
        assert pipeline.visible().total() == 0

        assert command("resolve", pipeline.options.checkpoint, *servers, "--yes").status == 0
        pipeline.require_exactly_once()
        assert command("status", pipeline.options.checkpoint, *servers).status == 0

        pipeline.feed(30)
        last = pipeline.process()
        assert last.ended() == 0, last.text[-3000:]
        pipeline.require_exactly_once()
    finally:
        pipeline.close()
