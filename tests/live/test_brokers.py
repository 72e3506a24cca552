"""Three brokers without Spark: a leader or coordinator is killed or paused at any step, and nothing is lost or duplicated.

The other brokers elect a new leader or coordinator within seconds. The driver waits for the election, or stops with an
error that says to restart; these tests then restart it, as an operator would.
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

from tests.live.cluster_support import cluster, coordinator, leader, replicated_topic, three_brokers
from tests.live.pipeline import Tasks
from tests.live.rules.schedules import Play, at, until
from tests.live.services import KafkaService
from twopc.errors import CommitBlockedError, DecisionInDoubtError, RetriableError
from twopc.sinks.kafka import driver_producer
from twopc.sinks.kafka.reader import offsets
from twopc.sinks.kafka.reports import NOT_FOUND
from twopc.testing.checkers.history import Position, Row
from twopc.testing.checkers.verdict import verdict
from twopc.testing.checkers.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services.kafka_cluster import LocalKafkaCluster
    from twopc.coordinator import Coordinator

#: Three brokers on two cores are slow, so only `make whole` runs these tests.
pytestmark = pytest.mark.whole

__all__ = ["cluster", "three_brokers"]

#: Errors after which the documentation tells an operator to restart the query.
_RESTART = (RetriableError, CommitBlockedError, DecisionInDoubtError)
_RESTARTS = 6
_TASKS = 2
_ROWS = 8
_BATCHES = 3
_STRUCK = 1
#: The time for two elections in a row, on a busy machine.
_STALL_BOUND_S = 60
#: The limit for one batch. We observed 3 to 13 s. The limit is below the step's timeout, which the wait must not use
#: up.
_ELECTIONS_S = 20


class Replicated(Play):
    """A query whose output survives the loss of a broker."""

    def __init__(self, cluster: LocalKafkaCluster, root: Path) -> None:
        super().__init__(KafkaService(cluster.bootstrap_servers), root, timeout_ms=10_000)
        self.cluster = cluster
        self.topic = replicated_topic(cluster, f"{self.name}-replicated", 3)
        self.sink = dataclasses.replace(self.sink, topic=self.topic)
        self._driving: Coordinator | None = None

    def rows(self, batch: int) -> list[list[str]]:
        return [[f"{task}:{_ROWS * batch + n}" for n in range(_ROWS)] for task in range(_TASKS)]

    def operate(self, batch: int) -> list[str]:
        """Process the batch, and restart after each error that allows it. Return those errors."""
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
        """The driver of the previous batch."""
        assert self._driving is not None
        return self._driving

    def restart(self) -> None:
        """Give the next batch a new driver."""
        self._driving = None

    def given(self) -> dict[Position, Row]:
        rows = [row for batch in range(_BATCHES) for task in self.rows(batch) for row in task]
        return {Position(*map(int, row.split(":"))): Row(row.encode(), row.encode()) for row in rows}


def _driver_coordinator(play: Replicated) -> int:
    return coordinator(play.cluster, f"{play.name}.driver")


def _task_coordinator(play: Replicated) -> int:
    """The coordinator for a task whose transaction is still open."""
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
    """Check every promise once the brokers are back after the faults of the body. Yields a list for errors to report."""
    cluster = play.cluster
    with Watcher(cluster.bootstrap_servers, play.topic) as watcher:
        errors: list[str] = []
        yield errors
        cluster.start()
        assert until(lambda: not play.open_transactions(), 30)
        violations = verdict(play.sink, cluster.bootstrap_servers, watcher, play.given(), stall_bound_s=_STALL_BOUND_S)
    assert not violations, (errors, violations)


def strike(play: Replicated, role: str, point: str, action: str) -> list[str]:
    """Strike the node in this role when the driver passes the given point in the middle batch. Return the resulting errors."""

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
def test_a_killed_node_loses_and_duplicates_nothing(role: str, point: str, play: Replicated) -> None:
    strike(play, role, point, "kill")


def test_a_client_finds_the_successor_of_a_coordinator(play: Replicated) -> None:
    transactional_id = f"{play.name}.0.preflight.0"

    def is_answered() -> bool:
        return play.describe(transactional_id).error == NOT_FOUND

    assert until(is_answered, 30)
    play.cluster[coordinator(play.cluster, transactional_id)].kill()
    assert until(is_answered, 30)


def test_offsets_are_requested_from_the_current_leader(cluster: LocalKafkaCluster, tmp_path: Path) -> None:
    """Fails if the client does not look up the leaders again between two requests for offsets."""
    topic = replicated_topic(cluster, f"offsets-{tmp_path.name}", 3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def ask() -> dict[int, int]:
        return offsets(admin, topic, range(3), OffsetSpec.latest(), timeout_ms=1000 * _ELECTIONS_S)

    assert ask() == {0: 0, 1: 0, 2: 0}
    cluster[leader(cluster, topic, 0)].kill()
    assert ask() == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("point", ["between batches", "driver.deciding"])
def test_the_death_of_the_drivers_coordinator_stalls_a_batch_only_during_the_elections(
    point: str, play: Replicated, add_summary: Callable[[str], None]
) -> None:
    """Fails if a single request for offsets may use up the whole timeout.

    The killed node also leads partitions of the ledger, and the driver's clients believe so until they learn otherwise.
    """
    # 30 s is the default; a driver that waits that long fails this test.
    play.sink = dataclasses.replace(play.sink, timeout_ms=30_000)
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
    add_summary(f"{point}: the batch took {stalled_s:.1f} s, restarted after {errors}")
    assert stalled_s < _ELECTIONS_S


def test_the_successor_of_a_silent_coordinator_commits_the_decision(play: Replicated) -> None:
    """Rule 12.

    Fails if the driver waits for the silent node for the whole life of the transaction, and stops in doubt.
    """
    errors = strike(play, "driver's coordinator", "driver.deciding", "pause")
    assert not any("DecisionInDoubt" in error for error in errors), errors


def test_a_restart_proves_an_in_doubt_decision_even_if_the_replaced_coordinator_wakes_up(
    play: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 12. When the node resumes and receives the request, it is no longer the coordinator.

    Fails if a missing response raises a RetriableError, after which the same driver decides again.
    """
    with watched(play):
        assert play.operate(0) == []
        doubtful, engine = play.running(), Tasks(play, play.rows(1))
        old = _driver_coordinator(play)
        with monkeypatch.context() as patched:
            patched.setattr(
                driver_producer, "_DRIVER_TRANSACTION_TIMEOUT_MS", 500
            )  # the transaction times out before the client asks the successor
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
def test_nodes_killed_or_paused_at_any_step_lose_and_duplicate_nothing(
    cluster: LocalKafkaCluster, tmp_path: Path, add_summary: Callable[[str], None]
) -> None:
    """`TWOPC_BROKER_ROUNDS` sets the number of rounds, `TWOPC_SEED` their order. Each kill is followed by a pause."""
    rounds = int(os.environ.get("TWOPC_BROKER_ROUNDS", "2"))
    seed = int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 32))))
    schedules = [(role, point) for role in ROLES for point in STEPS]
    random.Random(seed).shuffle(schedules)
    for number in range(rounds):
        role, point = schedules[number // 2 % len(schedules)]
        action = ("kill", "pause")[number % 2]
        with contextlib.closing(Replicated(cluster, tmp_path / str(number))) as play:
            try:
                errors = strike(play, role, point, action)
            finally:
                add_summary(f"TWOPC_SEED={seed} {number}: {action} of the {role} at {point}")
        add_summary("".join(f"restarted after {error}; " for error in errors))
