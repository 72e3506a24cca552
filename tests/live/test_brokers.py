"""Three brokers without Spark: who leads or coordinates is killed or paused at any step, and nothing is lost or doubled.

The brokers that are left elect a new leader or coordinator within seconds: the driver waits for it, or stops with an error
that says to restart, which is done here as an operator would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from typing import TYPE_CHECKING

import pytest

from sinks.kafka_transactions import NOT_FOUND
from tests.checkers.history import Position
from tests.checkers.verdict import verdict
from tests.checkers.watcher import Watcher
from tests.live.cluster_support import cluster, coordinator, leader, replicated_topic, three_brokers
from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, until
from tests.live.services import KafkaService
from twopc.errors import CommitBlockedError, DecisionInDoubtError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from integration.local_cluster import LocalKafkaCluster
    from twopc.coordinator import Coordinator

#: Three brokers on two cores: make whole.
pytestmark = pytest.mark.whole

__all__ = ["cluster", "three_brokers"]

#: What the documentation tells an operator to restart after.
_RESTART = (RetriableError, CommitBlockedError, DecisionInDoubtError)
_RESTARTS = 6
_TASKS = 2
_ROWS = 8
_BATCHES = 3
_STRUCK = 1
#: Two elections one after the other, on a machine that is busy.
_STALL_BOUND_S = 60


class Replicated(Play):
    """A query whose output survives a broker."""

    def __init__(self, cluster: LocalKafkaCluster, root: Path) -> None:
        super().__init__(KafkaService(cluster.bootstrap_servers), root, timeout_ms=10_000)
        self.cluster = cluster
        self.topic = replicated_topic(cluster, f"{self.name}-replicated", 3)
        self.sink = dataclasses.replace(self.sink, topic=self.topic)
        self._driving: Coordinator | None = None

    def rows(self, batch: int) -> list[list[str]]:
        return [[f"{task}:{_ROWS * batch + n}" for n in range(_ROWS)] for task in range(_TASKS)]

    def operate(self, batch: int) -> list[str]:
        """The batch, restarted after each error after which one may; returns those errors."""
        errors: list[str] = []
        while True:
            try:
                self._driving = self._driving or self.driver()
                self._driving.process(self.checkpoint(batch), Tasks(self, self.rows(batch)))
            except _RESTART as error:
                self._driving = None
                errors.append(f"{type(error).__name__}: {error}")
                assert len(errors) < _RESTARTS, errors
            else:
                return errors

    def given(self) -> dict[Position, bytes]:
        rows = [row for batch in range(_BATCHES) for task in self.rows(batch) for row in task]
        return {Position(*map(int, row.split(":"))): row.encode() for row in rows}


def _driver_coordinator(play: Replicated) -> int:
    return coordinator(play.cluster, f"{play.name}.driver")


def _task_coordinator(play: Replicated) -> int:
    """Of a task whose transaction is open still."""
    ids = [tid for tid in play.open_transactions() if not tid.endswith(".driver")]
    return coordinator(play.cluster, ids[-1])


def _decisions_leader(play: Replicated) -> int:
    return leader(play.cluster, play.sink.ledger, 0)


def _output_leader(play: Replicated) -> int:
    return leader(play.cluster, play.topic, 0)


ROLES: dict[str, Callable[[Replicated], int]] = {
    "driver's coordinator": _driver_coordinator,
    "task's coordinator": _task_coordinator,
    "decisions' leader": _decisions_leader,
    "output's leader": _output_leader,
}
STEPS = ("driver.prepared", "driver.confirmed", "driver.deciding", "driver.decided", "driver.committing")


@pytest.fixture
def play(cluster: LocalKafkaCluster, tmp_path: Path) -> Iterator[Replicated]:
    with contextlib.closing(Replicated(cluster, tmp_path)) as one:
        yield one


def strike(play: Replicated, role: str, point: str, action: str) -> list[str]:
    """Do it to who has the role when the driver passes the point of the middle batch; returns what a restart was needed for."""
    cluster = play.cluster

    def act() -> None:
        node = cluster[ROLES[role](play)]
        node.kill() if action == "kill" else node.pause()

    with Watcher(cluster.bootstrap_servers, play.topic) as watcher:
        errors: list[str] = []
        for batch in range(_BATCHES):
            with at(point, act) if batch == _STRUCK else contextlib.nullcontext():
                errors += play.operate(batch)
        cluster.start()
        assert until(lambda: not play.open_transactions(), 30)
        violations = verdict(play.sink, cluster.bootstrap_servers, watcher, play.given(), stall_bound_s=_STALL_BOUND_S)
    assert not violations, (errors, violations)
    return errors


@pytest.mark.parametrize(
    ("role", "point"),
    [
        ("driver's coordinator", "driver.deciding"),
        ("decisions' leader", "driver.decided"),
        ("task's coordinator", "driver.committing"),
    ],
)
def test_a_node_that_is_killed_at_a_step_takes_nothing_with_it(role: str, point: str, play: Replicated) -> None:
    strike(play, role, point, "kill")


def test_a_client_finds_the_successor_of_a_coordinator_that_it_has_asked_before(play: Replicated) -> None:
    transactional_id = f"{play.name}.0.preflight.0"

    def is_answered() -> bool:
        return play.describe(transactional_id).error == NOT_FOUND

    assert until(is_answered, 30)
    play.cluster[coordinator(play.cluster, transactional_id)].kill()
    assert until(is_answered, 30)


@pytest.mark.timeout(3600)
def test_nodes_killed_or_paused_at_any_step_take_nothing_with_them(
    cluster: LocalKafkaCluster, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """As many as `TWOPC_BROKER_ROUNDS` says, in an order that `TWOPC_SEED` gives."""
    rounds = int(os.environ.get("TWOPC_BROKER_ROUNDS", "1"))
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    schedules = [(role, point) for role in ROLES for point in STEPS]
    random.Random(seed).shuffle(schedules)
    for number in range(rounds):
        role, point = schedules[number // 2 % len(schedules)]
        action = ("kill", "pause")[number % 2]
        with contextlib.closing(Replicated(cluster, tmp_path / str(number))) as play:
            try:
                told = strike(play, role, point, action)
            finally:
                tell(f"TWOPC_SEED={seed} {number}: {action} of the {role} at {point}")
        tell("".join(f"restarted after {error}; " for error in told))
