"""Two calls for one batch that use one coordinator at the same time. An interceptor's threads could make such calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import OTHER, records
from tests.unit.fake_sink import QUERY_ID, Cluster, all_rows, batch_of
from twopc import crash_points
from twopc.errors import CommitBlockedError, DecisionInDoubtError, FatalError
from twopc.override import Overrides
from twopc.records import Begin, Decision
from twopc.registers import RegisterLog
from twopc.settings import Settings
from twopc.testing.crash_points import arm

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.fake_sink import Query
    from twopc.records import Record

_BEFORE_THE_DECISION = [
    "task.began",
    "task.written",
    "task.prepared",
    "driver.prepared",
    "driver.confirmed",
]
_AFTER_THE_COMMIT = ["driver.committed", "driver.swept"]


def again(query: Query, batch: int = 1) -> Callable[[], None]:
    def call() -> None:
        crash_points.disarm()
        query.coordinator.process(batch_of(batch), query.engine)

    return call


def decided(cluster: Cluster) -> list[int]:
    return [one.batch_id for one in records(cluster, Decision) if isinstance(one, Decision)]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("point", _BEFORE_THE_DECISION)
def test_a_call_does_not_decide_a_batch_that_another_call_has_decided_in_the_meantime(
    point: str, batch: int, cluster: Cluster
) -> None:
    query = cluster.start()
    query.run(*range(batch))
    arm(point, again(query, batch))
    with pytest.raises(FatalError, match=r"at the same time.*No row is lost or duplicated"):
        query.run(batch)
    assert cluster.store.visible() == all_rows(*range(batch + 1))
    assert not cluster.store.pending()
    query.run(batch, batch + 1)
    assert cluster.store.visible() == all_rows(*range(batch + 2))
    assert decided(cluster) == list(range(batch + 2))


@pytest.mark.parametrize(("point", "error"), [("driver.deciding", FatalError), ("driver.decided", CommitBlockedError)])
def test_a_call_is_refused_while_another_call_decides_the_batch(
    point: str, error: type[Exception], cluster: Cluster
) -> None:
    query = cluster.start()
    query.run(0)

    def refused() -> None:
        with pytest.raises(error):
            again(query)()

    arm(point, refused)
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)
    assert not cluster.store.pending()
    assert decided(cluster) == [0, 1]


@pytest.mark.parametrize("point", _AFTER_THE_COMMIT)
def test_a_call_writes_nothing_once_another_call_has_committed_the_batch(point: str, cluster: Cluster) -> None:
    query = cluster.start()
    query.run(0)
    arm(point, again(query))
    query.run(1, 2)
    assert cluster.store.visible() == all_rows(0, 1, 2)
    assert decided(cluster) == [0, 1, 2]


def test_a_call_decides_nothing_while_another_calls_decision_is_in_doubt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = cluster.start()
    query.run(0)
    really = RegisterLog.append

    def unanswered(log: RegisterLog, decision: list[Record]) -> int:
        really(log, decision)
        raise LookupError("the answer is lost")

    def in_doubt() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(RegisterLog, "append", unanswered)
            with pytest.raises(LookupError):
                query.coordinator.process(batch_of(1), query.engine)

    arm("driver.confirmed", in_doubt)
    with pytest.raises(DecisionInDoubtError):
        query.run(1)
    assert decided(cluster) == [0, 1]
    cluster.start().run(1)
    assert cluster.store.visible() == all_rows(0, 1)


def test_only_one_of_two_calls_records_an_adoption(cluster: Cluster) -> None:
    cluster.start().run(0)
    query = cluster.start(settings=Settings(overrides=Overrides(end_query_ids={QUERY_ID}, adopt_query_id=OTHER)))

    def adopt() -> None:
        query.coordinator.process(batch_of(5, query_id=OTHER), query.engine)

    arm("driver.prepared", adopt)
    with pytest.raises(FatalError, match="at the same time"):
        adopt()
    assert cluster.store.visible() == all_rows(0, 5)
    opened = [one.first_batch for one in records(cluster, Begin) if isinstance(one, Begin)]
    assert opened == [0, 5]
