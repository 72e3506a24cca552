"""The network loses, delays and breaks requests at random for some batches; then every checker judges the result.

The seed is in the test's name. It causes the same faults in every run, as far as threads allow.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks
from tests.nemesis.frames import Api
from tests.nemesis.rules import Selection
from tests.nemesis.schedules import of_driver, of_tasks
from twopc.errors import TwoPhaseCommitError
from twopc.testing.checkers.history import Position, Row
from twopc.testing.checkers.verdict import verdict
from twopc.testing.checkers.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.live.rules.schedules import Play
    from tests.live.services import KafkaService
    from tests.nemesis.proxy import KafkaProxy
    from tests.nemesis.rules import Rule

BATCHES = 8
TASKS = 3
ROWS = 2
MOST_RESTARTS = 5
APIS = [
    Api.END_TXN,
    Api.END_TXN,  # listed twice, because it matters most
    Api.INIT_PRODUCER_ID,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.PRODUCE,
    Api.DESCRIBE_TRANSACTIONS,
]
FAULTS: list[Callable[[Selection], Rule]] = [
    Selection.drop_request,
    Selection.drop_response,
    Selection.close_connection,
    partial(Selection.close_connection, answered=True),
    partial(Selection.delay, seconds=1.5),  # longer than the client waits, so the request arrives twice, and late
    partial(Selection.delay_response, seconds=0.2),
]


def rows_of(batch: int) -> list[list[str]]:
    return [
        [f"{task}:{batch * ROWS + number}" for number in range(ROWS)] for task in range(TASKS)
    ]  # each task reads one partition of the source


def given(batches: int) -> dict[Position, Row]:
    rows = itertools.chain.from_iterable(task for batch in range(batches) for task in rows_of(batch))
    return {Position(*map(int, row.split(":"))): Row(row.encode(), row.encode()) for row in rows}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(2, 11))])
def test_every_row_is_visible_once_and_nothing_is_left_open_under_any_network_fault(
    kafka: KafkaService, play: Play, proxy: KafkaProxy, seed: int
) -> None:
    chance = random.Random(seed)
    driver, restarts = play.driver(), 0
    with Watcher(kafka.bootstrap_servers, play.topic) as watcher:
        for batch in range(BATCHES):
            for _ in range(2):
                whose = chance.choice([of_tasks, of_driver])(play)
                selection = proxy.on(chance.choice(APIS), transactional_id=whose, nth=chance.randint(1, TASKS))
                chance.choice(FAULTS)(selection)
            done = False
            while not done:
                try:
                    driver.process(play.batch(batch), Tasks(play, rows_of(batch)))
                    done = True
                except TwoPhaseCommitError:
                    restarts += 1
                    assert restarts <= MOST_RESTARTS
                    driver = play.driver()
            for end in proxy.recorded(Api.END_TXN, of_tasks(play)):
                proxy.replay(end)
        play.forget_worker()
        assert verdict(play.sink, kafka.bootstrap_servers, watcher, given(BATCHES), stall_bound_s=15) == []
    assert proxy.injected >= BATCHES / 2, "too few faults were injected"
