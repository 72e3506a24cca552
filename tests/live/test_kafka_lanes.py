"""Commits of many transactions, over several connections to a broker."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kafka.errors import KafkaConnectionError

from tests.live.pipeline import Tasks
from tests.live.rules.schedules import playing, until
from twopc.sinks.kafka.lanes import _LANES, _MANY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.live.services import KafkaService


@pytest.mark.whole
def test_many_transactions_are_committed_over_several_connections(kafka: KafkaService, tmp_path: Path) -> None:
    """If a request on one of these connections receives no response, it is sent again, however the connection ended."""
    rows = [[str(number)] for number in range(_MANY + 2)]
    once = Counter(row for (row,) in rows)
    with playing(kafka, tmp_path) as play:
        driver = play.driver()
        driver.process(play.batch(0), Tasks(play, rows))
        committer: Any = driver.participants.committers[play.sink.name]
        lanes = committer._client._lanes
        assert until(lambda: len(lanes._further) == _LANES - 1)
        sent = [_count_requests(lane) for lane in lanes._further]
        driver.process(play.batch(1), Tasks(play, rows))
        assert play.visible() == once + once
        assert all(map(sum, sent))
        for lane in lanes._further:
            lane.send_all = _without_answer
        driver.process(play.batch(2), Tasks(play, rows))
        assert play.visible() == once + once + once


def _without_answer(requests: list[Any]) -> list[Any]:
    return [KafkaConnectionError("cut off") for _ in requests]


def _count_requests(lane: Any) -> list[int]:
    counts, really = [], lane.send_all

    def send_all(requests: list[Any]) -> Any:
        counts.append(len(requests))
        return really(requests)

    lane.send_all = send_all
    return counts
