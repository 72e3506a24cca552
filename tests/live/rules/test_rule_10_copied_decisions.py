"""Rule 10, if the decisions are in the checkpoint although the query has a Kafka sink: a copy has its own decisions.

The query began without a Kafka sink, so its decisions are in the checkpoint, and they stay there. Its other sink, which has
no log, never fences a driver and never notices a copy here: its batches have rows for Kafka only.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, opened
from tests.live.rules.schedules import Play, at, die, until
from tests.unit.fake_sink import FakeSink, World
from twopc.coordinator import Coordinator
from twopc.errors import FencedError, RefusedStartError
from twopc.files import LocalFiles
from twopc.log_view import fold
from twopc.override import Abandon, Overrides
from twopc.registers import RegisterLog
from twopc.settings import Settings
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.sinks.kafka.handle import KafkaHandle


def is_older_copy(error: RefusedStartError) -> bool:
    return error.case == "older copy"


class Added:
    """A checkpoint with its decisions, to which a Kafka sink is added in batch 1."""

    def __init__(self, play: Play, root: Path) -> None:
        self._play = play
        self._root = root
        self._fake = FakeSink(World())
        opened.append(Coordinator([self._fake], LocalFiles(root / "twopc")))
        opened[-1].process(play.batch(0), self.rows(0))

    def rows(self, batch: int) -> Tasks:
        """Batch 0 has no rows. Every later batch has rows for Kafka only."""
        return Tasks(self._play, [[f"{batch}a"], [f"{batch}b"]] if batch else [], sinks=[self._play.sink])

    def driver(self, abandon: int | None = None) -> Coordinator:
        """A new run. The override that added the sink is still in the code."""
        given_up = frozenset[Abandon]() if abandon is None else {Abandon(abandon)}
        settings = Settings(overrides=Overrides(added_sinks={self._play.name}, abandoned=given_up))
        opened.append(Coordinator([self._fake, self._play.sink], LocalFiles(self._root / "twopc"), settings=settings))
        return opened[-1]

    def run(self, *batches: int, driver: Coordinator | None = None) -> Coordinator:
        driver = driver or self.driver()
        for batch in batches:
            driver.process(self._play.batch(batch), self.rows(batch))
        return driver

    def crash(self, batch: int, point: str) -> None:
        driver = self.driver()
        with pytest.raises(InjectedFault), at(point, die):
            self.run(batch, driver=driver)

    def copied(self, to: Path) -> Added:
        copy = object.__new__(Added)
        copy._play, copy._fake, copy._root = self._play, self._fake, shutil.copytree(self._root, to)
        return copy

    def decided(self) -> list[KafkaHandle]:
        decision = fold(RegisterLog(LocalFiles(self._root / "twopc")).inspect()).decision
        assert decision is not None
        return self._play.handles(decision.tasks)

    def shows(self, *batches: int) -> bool:
        """Whether readers see exactly the rows of these batches, each of them once."""
        expected = {f"{batch}{task}": 1 for batch in batches for task in "ab"}
        return until(lambda: self._play.visible() == expected, 5)


@pytest.fixture
def query(play: Play, tmp_path: Path) -> Added:
    return Added(play, tmp_path / "checkpoint")


@pytest.mark.parametrize("before", [(), (1,)], ids=["from before the sink was added", "from later"])
def test_an_older_copy_adds_no_rows_a_second_time_and_fences_no_driver(
    before: tuple[int, ...], query: Added, tmp_path: Path
) -> None:
    healthy = query.run(*before) if before else query.driver()
    copy, batch = query.copied(tmp_path / "copy"), len(before) + 1
    query.run(batch, driver=healthy)
    with pytest.raises(RefusedStartError, check=is_older_copy):
        copy.run(batch)
    query.run(batch + 1, driver=healthy)
    assert query.shows(*range(1, batch + 2))


def test_a_driver_fenced_by_a_copy_of_its_checkpoint_confirms_no_batch(query: Added, tmp_path: Path) -> None:
    """Its own registers would accept the decision."""
    fenced = query.run(1)
    copy = query.copied(tmp_path / "copy")
    with pytest.raises(FencedError), at("driver.prepared", lambda: copy.run(2)):
        query.run(2, driver=fenced)
    assert len(query.decided()) == len(copy.decided()) == 2
    with pytest.raises(RefusedStartError, check=is_older_copy):
        query.run(2)
    copy.run(3)
    assert query.shows(1, 2, 3)


def test_a_driver_does_not_repair_a_confirmed_batch_that_a_copy_has_swept(query: Added, tmp_path: Path) -> None:
    """Both checkpoints contain a decision for the batch, so the batch number alone proves nothing."""
    swept = query.run(1)
    copy = query.copied(tmp_path / "copy")
    with pytest.raises(FencedError), at("driver.confirmed", lambda: copy.run(2)):
        query.run(2, driver=swept)
    assert query.decided() != copy.decided()
    with pytest.raises(RefusedStartError, check=is_older_copy):
        query.run(2)
    copy.run(3)
    assert query.shows(1, 2, 3)


def test_a_commit_that_overtakes_a_copys_sweep_is_noticed(query: Added, tmp_path: Path, play: Play) -> None:
    query.run(1)
    copy = query.copied(tmp_path / "copy")
    query.crash(2, "driver.decided")

    def commit() -> None:
        assert {play.end(handle, commit=True) for handle in query.decided()} == {"NONE"}

    with (
        pytest.raises(RefusedStartError, match="restart that run", check=is_older_copy),
        at("driver.sweeping", commit),
    ):
        copy.run(2)
    query.run(2, 3)
    assert query.shows(1, 2, 3)


@pytest.mark.parametrize("point", ["driver.confirmed", "driver.decided", "driver.committing", "driver.committed"])
def test_a_restart_after_a_crash_is_not_an_older_copy(point: str, query: Added) -> None:
    query.run(1)
    query.crash(2, point)
    query.run(2, 3)
    query.run(3, 4)
    assert query.shows(1, 2, 3, 4)


def test_a_restart_after_a_repair_is_not_an_older_copy(query: Added, play: Play) -> None:
    query.crash(1, "driver.decided")
    lost, kept = query.decided()
    play.fence(lost.transactional_id)
    query.run(1)
    assert kept in query.decided()
    assert lost not in query.decided()
    query.run(1, 2)
    assert query.shows(1, 2)


def test_a_restart_after_an_abandoned_batch_is_not_an_older_copy(query: Added, play: Play) -> None:
    query.crash(1, "driver.committing")
    lost = [found for found in query.decided() if found.transactional_id in play.open_transactions()]
    for handle in lost:
        play.fence(handle.transactional_id)
    driver = query.driver(abandon=1)
    with pytest.raises(InjectedFault), at("driver.confirmed", die):
        query.run(2, driver=driver)
    query.run(2, 3)
    seen = play.visible()
    assert sum(seen.values()) == 6 - len(lost)
    assert set(seen.values()) == {1}
