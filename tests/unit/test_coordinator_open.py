"""When a batch stops, no undecided transaction stays open. This also holds between its attempts, and if ending one fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.coordinator_support import die_at
from tests.unit.fake_sink import Cluster, FakeCommitter, FakeEngine, all_rows, batch_of
from twopc import repair
from twopc.errors import FencedError, RetriableError
from twopc.registers import RegisterLog
from twopc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.fake_sink import Query
    from twopc.engine import Work
    from twopc.records import TaskReport


def fail(*_: object, **__: object) -> None:
    raise LookupError("a bug")


def test_an_error_while_a_replay_is_compared_leaves_no_transaction_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_at(cluster, cluster.start(), "driver.committing", 0)
    cluster.store.expire(1)
    with monkeypatch.context() as patched:
        patched.setattr(repair, "match_rows", fail)
        with pytest.raises(LookupError):
            cluster.start().run(0)
    assert cluster.store.pending() == []
    cluster.start().run(0)
    assert cluster.store.visible() == all_rows(0)


def test_an_attempt_begins_without_open_transactions(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.store.refused_confirmations = 2
    pending: list[list[str]] = []
    really = FakeEngine.prepare

    def prepare(engine: FakeEngine, work: Work) -> list[TaskReport]:
        pending.append(cluster.store.pending())
        return really(engine, work)

    monkeypatch.setattr(FakeEngine, "prepare", prepare)
    cluster.start().run(0)
    assert pending == [[], [], []]


def test_transactions_that_the_log_shows_as_undecided_are_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = cluster.start()
    query.run(0)

    def refuse(*_: object) -> int:
        raise RetriableError("the log does not accept writes")

    with monkeypatch.context() as patched:
        patched.setattr(RegisterLog, "append", refuse)
        with pytest.raises(RetriableError):
            query.run(1)
    assert cluster.store.pending() == []
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)


@pytest.mark.parametrize("name", ["abort", "recover_and_abort"])
def test_if_open_transactions_cannot_be_ended_the_first_error_is_raised_and_the_other_sinks_are_swept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    query = cluster.start("one", "two")
    query.run(0)
    really = getattr(FakeCommitter, name)

    def broken(committer: FakeCommitter, handles: object) -> None:
        if committer._sink == "one":
            raise ValueError("the client is closed")
        really(committer, handles)

    with monkeypatch.context() as patched:
        patched.setattr(FakeCommitter, name, broken)
        patched.setattr(FakeCommitter, "confirm", fail)
        with pytest.raises(LookupError, match="a bug"):
            query.run(1)
    assert "the client is closed" in caplog.text
    assert cluster.world.store("two").pending() == []


def fenced_before_its_tasks(query: Query, act: Callable[[], object]) -> None:
    """Run batch 1. Another driver takes over after this one has begun, and before its tasks begin."""
    really = query.engine.prepare

    def prepare(work: Work) -> list[TaskReport]:
        act()
        return really(work)

    query.engine.prepare = prepare  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        query.run(1)


def test_a_fenced_driver_ends_in_each_sink_the_transactions_that_its_successor_does_not_find(cluster: Cluster) -> None:
    first, second = cluster.start("one", "two"), cluster.start("one", "two")
    first.run(0)
    fenced_before_its_tasks(first, lambda: second.coordinator.recover(batch_of(1)))
    assert [cluster.world.store(name).pending() for name in ("one", "two")] == [[], []]
    second.run(1)
    assert cluster.world.store("two").visible() == all_rows(0, 1)


def test_a_fenced_driver_ends_no_transaction_if_the_log_no_longer_shows_the_decisions_that_it_may_have_made(
    cluster: Cluster,
) -> None:
    """Its successor has truncated the log, and has a successor. Fails if a missing decision counts as never written."""
    first, second, third = cluster.start(), cluster.start(settings=Settings(keep_batches=1)), cluster.start()
    first.run(0)

    def take_over_twice() -> None:
        second.run(*range(1, 6))
        third.coordinator.recover(batch_of(6))

    fenced_before_its_tasks(first, take_over_twice)
    assert len(cluster.store.pending()) == len(all_rows(1)) / 2
    third.run(6)
    assert (cluster.store.pending(), cluster.store.visible()) == ([], all_rows(*range(7)))


def test_a_fenced_driver_ends_no_transaction_if_it_cannot_read_the_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = cluster.start(), cluster.start()
    first.run(0)

    def take_over() -> None:
        second.coordinator.recover(batch_of(1))
        monkeypatch.setattr(RegisterLog, "inspect", fail)

    fenced_before_its_tasks(first, take_over)
    assert "a bug" in caplog.text
    assert cluster.store.pending() != []
