"""Three brokers without Spark: who leads or coordinates is killed or paused at any step, and nothing is lost or doubled.

The brokers that are left elect a new leader or coordinator within seconds: the driver waits for it, or stops with an error
that says to restart, which is done here as an operator would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, OffsetSpec

from sinks.kafka import driver_producer
from sinks.kafka.reader import offsets
from sinks.kafka.reports import NOT_FOUND
from tests.live.cluster_support import cluster, coordinator, leader, replicated_topic, three_brokers
from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, until
from tests.live.services import KafkaService
from twopc.errors import CommitBlockedError, DecisionInDoubtError, RetriableError
from twopc.testing.checkers.history import Position, Row
from twopc.testing.checkers.verdict import verdict
from twopc.testing.checkers.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from integration.services.kafka_cluster import LocalKafkaCluster
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
#: The same for one batch: 3 to 13 s were seen. Shorter than the step's timeout, which it took before.
_ELECTIONS_S = 20


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
                self._driving.process(self.batch(batch), Tasks(self, self.rows(batch)))
            except _RESTART as error:
                self._driving = None
                errors.append(f"{type(error).__name__}: {error}")
                assert len(errors) < _RESTARTS, errors
            else:
                return errors

    def running(self) -> Coordinator:
        """The driver of the batch before."""
        assert self._driving is not None
        return self._driving

    def restart(self) -> None:
        """The next batch has a new driver."""
        self._driving = None

    def given(self) -> dict[Position, Row]:
        rows = [row for batch in range(_BATCHES) for task in self.rows(batch) for row in task]
        return {Position(*map(int, row.split(":"))): Row(row.encode(), row.encode()) for row in rows}


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


@contextlib.contextmanager
def watched(play: Replicated) -> Iterator[list[str]]:
    """Whatever happens to the brokers in the body, all promises hold when they are back. Gives a list for errors to tell."""
    cluster = play.cluster
    with Watcher(cluster.bootstrap_servers, play.topic) as watcher:
        errors: list[str] = []
        yield errors
        cluster.start()
        assert until(lambda: not play.open_transactions(), 30)
        violations = verdict(play.sink, cluster.bootstrap_servers, watcher, play.given(), stall_bound_s=_STALL_BOUND_S)
    assert not violations, (errors, violations)


def strike(play: Replicated, role: str, point: str, action: str) -> list[str]:
    """Do it to who has the role when the driver passes the point of the middle batch; returns what a restart was needed for."""

    def act() -> None:
        node = play.cluster[ROLES[role](play)]
        node.kill() if action == "kill" else node.pause()

    with watched(play) as errors:
        for batch in range(_BATCHES):
            with at(point, act) if batch == _STRUCK else contextlib.nullcontext():
                errors.extend(play.operate(batch))
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


def test_offsets_are_asked_of_whoever_leads_now(cluster: LocalKafkaCluster, tmp_path: Path) -> None:
    """Caught mutations: as below; the leaders are not looked for between two questions."""
    topic = replicated_topic(cluster, f"offsets-{tmp_path.name}", 3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def ask() -> dict[int, int]:
        return offsets(admin, topic, range(3), OffsetSpec.latest(), timeout_ms=1000 * _ELECTIONS_S)

    assert ask() == {0: 0, 1: 0, 2: 0}
    cluster[leader(cluster, topic, 0)].kill()
    assert ask() == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("point", ["between batches", "driver.deciding"])
def test_the_death_of_the_drivers_coordinator_stalls_it_for_the_elections_and_not_for_a_timeout(
    point: str, play: Replicated, tell: Callable[[str], None]
) -> None:
    """Caught mutation: one question for offsets takes all the time there is.

    The node that dies leads partitions of the ledger, too, and the driver's clients believe so until they are told.
    """
    play.sink = dataclasses.replace(play.sink, timeout_ms=30_000)  # the default; whoever waits for it is found out
    began = 0.0

    def kill() -> None:
        nonlocal began
        began = time.monotonic()
        play.cluster[_driver_coordinator(play)].kill()

    with watched(play) as errors:
        errors.extend(play.operate(0))
        if point == "between batches":
            kill()
            errors.extend(play.operate(1))
        else:
            with at(point, kill):
                errors.extend(play.operate(1))
        stalled_s = time.monotonic() - began
        errors.extend(play.operate(2))
    tell(f"{point}: the batch took {stalled_s:.1f} s, restarted after {errors}")
    assert stalled_s < _ELECTIONS_S


def test_a_decision_is_committed_by_the_successor_of_a_coordinator_that_is_silent(play: Replicated) -> None:
    """Rule 12. Caught mutation: the silent one is waited for as long as the transaction lives, and the query is in doubt."""
    told = strike(play, "driver's coordinator", "driver.deciding", "pause")
    assert not any("DecisionInDoubt" in error for error in told), told


def test_a_decision_in_doubt_is_proven_by_a_restart_when_its_coordinator_wakes_after_it_was_replaced(
    play: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 12. The request is with a node that coordinates no longer when it goes on.

    Caught mutation: the silence is a RetriableError, after which the same driver decides again.
    """
    with watched(play):
        assert play.operate(0) == []
        doubtful, engine = play.running(), Tasks(play, play.rows(1))
        old = _driver_coordinator(play)
        with monkeypatch.context() as patched:
            patched.setattr(driver_producer, "_DRIVER_TRANSACTION_TIMEOUT_MS", 500)  # before it asks the successor
            with at("driver.deciding", play.cluster[old].pause), pytest.raises(DecisionInDoubtError):
                doubtful.process(play.batch(1), engine)
        assert until(lambda: _driver_coordinator(play) != old, 30)
        play.cluster[old].resume()
        with pytest.raises(DecisionInDoubtError):
            doubtful.process(play.batch(1), engine)
        assert (engine.prepared, engine.evaluated) == (1, 0)
        play.restart()
        play.operate(1)
        play.operate(2)
        assert [decision.batch_id for decision in play.decisions()] == [0, 1, 2]


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
