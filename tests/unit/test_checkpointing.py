"""Checkpoints that fail before their decision are tolerated, up to a number in a row; no others are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import DRIVER_POINTS
from tests.unit.fake_sink import Cluster, Query, all_rows
from tests.unit.test_progress import Recording
from twopc import checkpointing, errors, pending
from twopc.checkpoint_config import CheckpointConfig
from twopc.errors import CheckpointExpiredError, ConfigurationError, FencedError, RetriableError
from twopc.progress import Checkpoint
from twopc.settings import Settings
from twopc.testing.crash_points import InjectedLoss, arm_from, disarm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.engine import Work
    from twopc.records import TaskReport

UNDECIDED = ["driver.prepared", "driver.confirmed", "driver.bound"]
#: The other points, except one that only a Kafka sink has, and one whose failure only leaves the decision unanswered.
OTHERS = [point for point in DRIVER_POINTS if point not in {*UNDECIDED, "driver.fenced", "driver.deciding"}]
STAYING = [
    name
    for name in dir(errors)
    if name.endswith("Error")
    and name not in {"RetriableError", "UnavailableError", "CheckpointExpiredError", "ModuleNotFoundError"}
]


@pytest.fixture
def seen() -> Recording:
    return Recording()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


def tolerating(number: int) -> CheckpointConfig:
    return CheckpointConfig(tolerable_failures=number)


def tolerant(cluster: Cluster, seen: Recording, tolerable: int) -> Query:
    return cluster.start(listeners=[seen], settings=Settings(max_attempts=1), checkpoints=tolerating(tolerable))


def ended(seen: Recording) -> list[tuple[int, str, int]]:
    told = [one for one in seen.told if isinstance(one, Checkpoint)]
    return [(one.batch_id, one.outcome, one.failed_before) for one in told]


def away() -> RetriableError:
    return RetriableError("a broker was away")


def test_a_failed_checkpoint_is_triggered_again_and_each_attempt_has_its_own_record(
    cluster: Cluster, seen: Recording
) -> None:
    query = tolerant(cluster, seen, 2)
    query.engine.failures = [away(), away()]
    query.run(0)
    assert ended(seen) == [(0, "failed", 0), (0, "failed", 1), (0, "completed", 2)]
    assert len({work.attempt for work in query.engine.works}) == 3
    assert len({work.attempt.driver_epoch for work in query.engine.works}) == 1  # no driver was fenced
    assert cluster.store.visible() == all_rows(0)


def test_one_failure_above_the_tolerated_number_stops_the_query(cluster: Cluster, seen: Recording) -> None:
    query = tolerant(cluster, seen, 1)
    query.engine.failures = [away(), away()]
    with pytest.raises(
        RetriableError, match=r"This batch had already failed 1 time \(CheckpointConfig.tolerable_failures\)"
    ):
        query.run(0)
    assert ended(seen) == [(0, "failed", 0), (0, "failed", 1)]


def test_no_failure_is_tolerated_by_default(cluster: Cluster, seen: Recording) -> None:
    query = tolerant(cluster, seen, CheckpointConfig().tolerable_failures)
    query.engine.failures = [away()]
    with pytest.raises(RetriableError):
        query.run(0)


def test_a_completed_checkpoint_resets_the_count_of_failures(cluster: Cluster, seen: Recording) -> None:
    query = tolerant(cluster, seen, 1)
    for batch in range(3):
        query.engine.failures = [away()]
        query.run(batch)
    assert [outcome for _, outcome, _ in ended(seen)] == ["failed", "completed"] * 3
    assert cluster.store.visible() == all_rows(0, 1, 2)


def test_an_expired_checkpoint_is_tolerated_and_its_late_votes_are_aborted(cluster: Cluster, seen: Recording) -> None:
    query = tolerant(cluster, seen, 1)
    prepare = query.engine.prepare

    def too_late_once(work: Work) -> list[TaskReport]:
        reports = prepare(work)
        if len(query.engine.works) == 1:
            raise CheckpointExpiredError("too slow", late=reports)
        return reports

    query.engine.prepare = too_late_once  # type: ignore[method-assign]
    query.run(0)
    assert ended(seen) == [(0, "expired", 0), (0, "completed", 1)]
    assert (cluster.store.pending(), cluster.store.visible()) == ([], all_rows(0))


@pytest.mark.parametrize("name", [*STAYING, "RuntimeError"])
def test_only_temporary_errors_are_tolerated(name: str, cluster: Cluster, seen: Recording) -> None:
    kind = getattr(errors, name, RuntimeError)
    query = tolerant(cluster, seen, 5)
    query.engine.failures = [kind("it stays")]
    with pytest.raises(kind):
        query.run(0)
    assert len(query.engine.works) == 1


@pytest.mark.parametrize("point", UNDECIDED)
def test_a_loss_at_any_point_between_recovery_and_decision_is_tolerated(
    point: str, cluster: Cluster, seen: Recording
) -> None:
    arm_from(f"{point}=drop")
    query = tolerant(cluster, seen, 1)
    prepare, left_open = query.engine.prepare, []

    def noted(work: Work) -> list[TaskReport]:
        left_open.extend(cluster.store.pending())
        return prepare(work)

    query.engine.prepare = noted  # type: ignore[method-assign]
    query.run(0, 1)
    assert left_open == []  # the failed attempt's transactions are ended before the next one's begin
    assert ended(seen) == [(0, "failed", 0), (0, "completed", 1), (1, "completed", 0)]
    assert (cluster.store.pending(), cluster.store.visible()) == ([], all_rows(0, 1))


@pytest.mark.parametrize("point", OTHERS)
def test_a_loss_before_recovery_or_after_the_decision_stops_the_query_and_a_restart_continues(
    point: str, cluster: Cluster, seen: Recording
) -> None:
    arm_from(f"{point}=drop")
    query = tolerant(cluster, seen, 5)
    with pytest.raises(InjectedLoss):
        query.run(0)
    assert len(ended(seen)) == 1
    cluster.start().run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_a_driver_fenced_in_the_meantime_does_not_fence_its_successor(cluster: Cluster, seen: Recording) -> None:
    query = tolerant(cluster, seen, 5)
    query.run(0)
    prepare = query.engine.prepare
    successor = cluster.start()

    def overtaken(work: Work) -> list[TaskReport]:
        if len(query.engine.works) == 1:
            query.engine.works.append(work)
            successor.run(1)
            raise away()
        return prepare(work)

    query.engine.prepare = overtaken  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        query.run(1)
    successor.run(2)
    assert cluster.store.visible() == all_rows(0, 1, 2)


class Clock:
    """A clock that only moves when the product waits, or when a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1e6
        self.waits: list[int] = []

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def time(self) -> float:
        return self.now_ms / 1000

    def wait_ms(self, pause_ms: int) -> None:
        self.waits.append(pause_ms)
        self.now_ms += pause_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pending, "time", clock)
    monkeypatch.setattr(checkpointing, "time", clock)
    return clock


def pausing(cluster: Cluster, seen: Recording, clock: Clock, **numbers: float) -> Query:
    checkpoints = CheckpointConfig(**numbers)  # type: ignore[arg-type]
    settings = Settings(max_attempts=1)
    return cluster.start(listeners=[seen], settings=settings, checkpoints=checkpoints, wait_ms=clock.wait_ms)


def test_a_checkpoint_is_triggered_after_the_rest_of_the_pause_and_the_first_one_at_once(
    cluster: Cluster, seen: Recording, clock: Clock
) -> None:
    query = pausing(cluster, seen, clock, min_pause_ms=500)
    prepare = query.engine.prepare

    def slow(work: Work) -> list[TaskReport]:
        clock.now_ms += 100  # the pause is counted from the batch's end
        return prepare(work)

    query.engine.prepare = slow  # type: ignore[method-assign]
    query.run(0)
    assert clock.waits == []
    clock.now_ms += 200.5
    query.run(1)
    clock.now_ms += 500
    query.run(2)
    assert clock.waits == [300]  # rounded up; the third batch has already waited for its rows
    pauses = [one.pause_ms for one in seen.told if isinstance(one, Checkpoint)]
    assert pauses == [None, pytest.approx(500.5), pytest.approx(500)]


def test_the_pause_after_a_failed_checkpoint_also_applies_and_replaces_the_backoff(
    cluster: Cluster, seen: Recording, clock: Clock
) -> None:
    query = pausing(cluster, seen, clock, min_pause_ms=500, tolerable_failures=2)
    query.engine.failures = [away(), away()]
    query.run(0)
    assert clock.waits == [500, 500]


def test_a_query_stopped_during_a_pause_triggers_nothing(
    cluster: Cluster, seen: Recording, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "wait_ms", stopped)
    query = pausing(cluster, seen, clock, min_pause_ms=500)
    query.run(0)
    with pytest.raises(KeyboardInterrupt):
        query.run(1)
    assert len(seen.told) == 2 and len(query.engine.works) == 1


@pytest.mark.parametrize("pause", [-1, True, "2", float("inf"), float("nan")])
def test_an_invalid_pause_is_refused(pause: object) -> None:
    with pytest.raises(ConfigurationError, match=r"min_pause_ms must be 0 or a positive number of milliseconds"):
        CheckpointConfig(min_pause_ms=pause)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [-1, 1.5, True, "2"])
def test_an_invalid_number_of_tolerable_failures_is_refused(number: object) -> None:
    with pytest.raises(ConfigurationError, match=r"tolerable_failures must be 0 or a positive number of checkpoints"):
        CheckpointConfig(tolerable_failures=number)  # type: ignore[arg-type]
