"""Rule 13: names that cannot collide.

Without this rule, a driver that dies undecided leaves no record, so the next one starts at the same number. Or two attempts of
the same task stage under the same name, and the loser overwrites the accepted rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.live.pipeline import Tasks, checksum_of, prepare_task, record_batch
from tests.live.rules.schedules import Play, at, crash, die
from tests.reader import committed
from tests.tasks import keyed_views
from twopc.attempt import Attempt
from twopc.errors import RetriableError
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.records import TaskReport
from twopc.sinks.kafka.markers import Marker
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from twopc.engine import Work
    from twopc.sinks.kafka.handle import KafkaHandle


def markers(play: Play) -> list[Marker]:
    """Every marker in the ledger, whether its transaction was committed or aborted."""
    values = committed(play.bootstrap_servers, play.sink.ledger, isolation="read_uncommitted").elements()
    return [msgspec.json.decode(value, type=Marker) for value in values if value.startswith("{")]


class Speculating:
    """An engine that runs and stages two attempts of each task, and accepts the second."""

    def __init__(self, play: Play, rows: Sequence[Sequence[str]], staging: Path | None = None) -> None:
        self._play = play
        self._rows = rows
        self._staging = staging
        self.handles: list[tuple[KafkaHandle, KafkaHandle]] = []
        self.staged: list[tuple[str | None, str | None]] = []
        self.failures = 0
        self.evaluated = 0

    def prepare(self, work: Work) -> list[TaskReport]:
        reports = [self._task(work, partition, rows) for partition, rows in enumerate(self._rows)]
        if self.failures:
            self.failures -= 1
            raise RetriableError("as armed")
        return reports

    def evaluate(self) -> None:
        self.evaluated += 1

    def _task(self, work: Work, partition: int, rows: Sequence[str]) -> TaskReport:
        # Both attempts write at the same time; the loser has other rows and ends last.
        files = [self._staged_file(work) for _ in range(2)]
        accepted = self._stage(files[1], rows)
        refused = self._stage(files[0], [f"loser-{row}" for row in rows])
        self.staged.append((refused, accepted))
        loser = prepare_task(self._play, work, partition, [f"loser-{row}" for row in rows])
        winner = prepare_task(self._play, work, partition, rows)
        self.handles.append((loser, winner))
        handles = {self._play.name: self._play.sink.encode_handle(winner)}
        return TaskReport(
            partition=partition, rows=len(rows), checksum=checksum_of(rows), handles=handles, staged=accepted
        )

    def _staged_file(self, work: Work) -> StagedFileWriter | None:
        if self._staging is None:
            return None
        views = keyed_views(self._play.name)
        return StagedFileWriter(str(self._staging), work.attempt.driver_epoch, work.batch.batch_id, views)

    @staticmethod
    def _stage(writer: StagedFileWriter | None, rows: Sequence[str]) -> str | None:
        if writer is None:
            return None
        writer.write(record_batch(rows))
        return writer.close()


def test_attempts_never_repeat_across_restarts_without_a_decision(play: Play) -> None:
    """Fails if an attempt is a counter that starts at 1, without the driver epoch."""
    rows = [["a"], ["b"]]
    for _ in range(3):
        crash(play.driver(), play, 0, rows, "driver.confirmed")
    play.driver().process(play.batch(0), Tasks(play, rows))
    found = markers(play)
    attempts = {(marker.attempt, marker.task) for marker in found}
    assert len(attempts) == len(found) == 8  # four attempts with two tasks each
    assert len({marker.uuid for marker in found}) == 8
    (decision,) = play.decisions()
    assert decision.attempt == max(Attempt(*marker.attempt) for marker in found)
    assert play.visible() == {"a": 1, "b": 1}


def test_attempts_of_the_same_driver_never_repeat(play: Play) -> None:
    """Fails if the counter does not increase: all attempts of a driver would have one name."""
    engine = Speculating(play, [["a"]])
    engine.failures = 2
    driver = play.driver()
    driver.process(play.batch(0), engine)
    driver.process(play.batch(1), Tasks(play, [["b"]]))
    driver_epoch = play.decisions()[0].attempt.driver_epoch
    assert sorted({marker.attempt for marker in markers(play)}) == [(driver_epoch, n) for n in (1, 2, 3, 4)]
    assert [decision.attempt for decision in play.decisions()] == [(driver_epoch, 3), (driver_epoch, 4)]
    assert play.visible() == {"a": 1, "b": 1}


def test_two_attempts_of_a_task_share_no_transaction_and_only_the_accepted_one_is_visible(play: Play) -> None:
    """Fails if an attempt's handle is named after (batch, attempt, task) instead of a UUID."""
    engine = Speculating(play, [["a"], ["b"]])
    play.driver().process(play.batch(0), engine)
    losers, winners = zip(*engine.handles, strict=True)
    assert len({handle.uuid for handle in losers + winners}) == 4
    assert len({handle.transactional_id for handle in losers + winners}) == 4
    assert play.decided(0) == list(winners)
    assert play.open_transactions() == ()
    assert play.visible() == {"a": 1, "b": 1}


def test_two_attempts_of_a_task_share_no_staged_file_and_only_the_accepted_one_is_published(
    play: Play, tmp_path: Path
) -> None:
    """Fails if a staged file is named after its task or batch: the loser's rows would be published."""
    location = tmp_path / "staging"
    staging = Staging(str(location))
    engine = Speculating(play, [["a"], ["b"]], location)
    engine.failures = 1  # an attempt that fails as a whole stages its rows, too
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), engine)
    names = [name for pair in engine.staged for name in pair]
    assert len(set(names)) == len(names) == 8
    (decision,) = play.decisions()
    assert [task.staged for task in decision.tasks] == [accepted for _, accepted in engine.staged[2:]]
    for handle in play.decided(0):
        play.fence(handle.transactional_id)
    play.driver(staging=staging).process(play.batch(0), Tasks(play, [["x"]], staging=staging))
    assert play.visible() == {"a": 1, "b": 1}
    assert not any(staging.has(str(name)) for name in names), (
        "the losers' staged files should be deleted with those of the proven batch"
    )


def test_only_the_last_attempts_staged_files_exist_at_the_decision_and_they_survive_a_restart(
    play: Play, tmp_path: Path
) -> None:
    """Otherwise, a query that restarts forever on the same batch would fill the file system."""
    location = tmp_path / "staging"
    staging = Staging(str(location))
    dead = Speculating(play, [["a"], ["b"]], location)
    with pytest.raises(InjectedFault), at("driver.confirmed", die):
        play.driver(staging=staging).process(play.batch(0), dead)
    engine = Speculating(play, [["a"], ["b"]], location)
    engine.failures = 2
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), engine)
    there = {str(path.relative_to(location)) for path in location.rglob("*.arrow")}
    assert there == {name for pair in engine.staged[4:] for name in pair}
    (decision,) = play.decisions()
    for handle in play.decided(0):
        play.fence(handle.transactional_id)
    with pytest.raises(InjectedFault), at("driver.confirmed", die):  # the next driver deletes only the losers' files
        play.driver(staging=staging).process(play.batch(0), Tasks(play, [["x"]], staging=staging))
    there = {str(path.relative_to(location)) for path in location.rglob("*.arrow")}
    assert there == {task.staged for task in decision.tasks}
    play.driver(staging=staging).process(play.batch(0), Tasks(play, [["x"]], staging=staging))
    assert play.visible() == {"a": 1, "b": 1}
    assert not list(location.rglob("*.arrow"))


def test_a_dead_drivers_staged_files_are_not_mistaken_for_its_successors(play: Play, tmp_path: Path) -> None:
    """Fails if staged files are named only after the batch: releasing them would drop a later driver's staged files, too."""
    location = tmp_path / "staging"
    staging = Staging(str(location))
    dead = Speculating(play, [["a"]], location)
    with pytest.raises(InjectedFault), at("driver.confirmed", die):
        play.driver(staging=staging).process(play.batch(0), dead)
    living = Speculating(play, [["a"]], location)
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), living)
    assert {name for pair in dead.staged for name in pair}.isdisjoint(name for pair in living.staged for name in pair)
    (_, accepted), *_ = dead.staged
    staging.release(int(str(accepted).partition("/")[0]), 0)  # the fenced driver wakes up
    assert not any(staging.has(str(name)) for pair in dead.staged for name in pair)
    assert all(staging.has(str(name)) for pair in living.staged for name in pair)
