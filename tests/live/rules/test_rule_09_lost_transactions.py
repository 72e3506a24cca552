"""Rule 9: a decided transaction that is proven lost is repaired, with exactly the rows that were decided.

Suppose that a driver decides and dies, and that before the restart some or all of the decided transactions time out or are
ended from outside. If that is ignored, their rows are missing forever. If the batch is rewritten unchecked, committed rows are
duplicated.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.live.pipeline import Tasks, create_topic, record_batch
from tests.live.rules.schedules import Play, at, crash, die, playing, until
from tests.reader import committed
from tests.tasks import keyed_views
from twopc.errors import ConfigurationError, InDoubtError
from twopc.integration.spark.staging import StagedFileWriter, Staging
from twopc.records import Repair
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.live.services import KafkaService
    from twopc.sinks.kafka.handle import KafkaHandle

ROWS = (("a", "b"), ("c",), ("d", "e"))
ONCE = dict.fromkeys("abcde", 1)
#: The broker looks for expired transactions every 10 s.
TIMED_OUT_WITHIN_S = 40


def repairs(play: Play) -> list[Repair]:
    return [record for record in play._records() if isinstance(record, Repair)]


def repaired(play: Play) -> list[list[int]]:
    """The tasks that each repair record replaces."""
    return [[part.index for task in repair.tasks for part in task.by_part] for repair in repairs(play)]


def commit(play: Play, handle: KafkaHandle) -> None:
    assert until(lambda: play.end(handle, commit=True) == "NONE")


def decide_and_die(play: Play, *lost: int) -> list[KafkaHandle]:
    """Decide batch 0 and kill its driver. The lost transactions are ended as by a timeout, the others are committed."""
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    decided = play.decided(0)
    for partition, handle in enumerate(decided):
        play.fence(handle.transactional_id) if partition in lost else commit(play, handle)
    return decided


def test_a_batch_with_every_transaction_lost_is_rewritten_as_a_new_attempt(play: Play) -> None:
    """Fails if a batch that is lost in every task is only evaluated."""
    lost = decide_and_die(play, 0, 1, 2)
    # No part of the batch is visible, so other rows in other tasks are acceptable.
    replay = Tasks(play, [["e", "d", "c"], ["b", "a"]])
    play.driver().process(play.batch(0), replay)
    assert play.visible() == ONCE
    assert replay.prepared == 1
    first, second = play.decisions()
    assert (first.kind, second.kind, repairs(play)) == ("write", "rewrite", [])
    assert second.attempt > first.attempt
    assert {handle.uuid for handle in lost}.isdisjoint(handle.uuid for handle in play.decided(0))


def test_only_lost_tasks_are_written_again_if_the_replay_has_the_same_rows(play: Play) -> None:
    """Fails if a partly lost batch is rewritten (duplicates a, b) or only evaluated (c, d and e stay lost)."""
    decided = decide_and_die(play, 1, 2)
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert play.visible() == ONCE
    (repair,) = repairs(play)
    assert repaired(play) == [[1, 2]]
    assert {handle.uuid for handle in decided}.isdisjoint(handle.uuid for handle in play.handles(repair.tasks))


def test_the_repair_is_recorded_before_any_of_its_rows_is_visible(play: Play) -> None:
    """Fails if the new transactions are committed before the repair's record."""
    decide_and_die(play, 2)
    seen: list[tuple[int, dict[str, int]]] = []

    def look() -> None:
        seen.append((len(repairs(play)), dict(play.visible())))

    with at("driver.deciding", look), at("driver.decided", look):
        play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert seen == [(0, dict.fromkeys("abc", 1)), (1, dict.fromkeys("abc", 1))]
    assert play.visible() == ONCE


@pytest.mark.parametrize("point", ["driver.decided", "driver.committed"])
def test_a_crash_after_the_repairs_record_does_not_repeat_the_repair(point: str, play: Play) -> None:
    """Fails if folding the log ignores the repair.

    The replaced transaction stays lost permanently, so each restart would write its rows again.
    """
    decide_and_die(play, 1)
    crash(play.driver(), play, 0, ROWS, point)
    driver, replay = play.driver(), Tasks(play, ROWS)
    driver.process(play.batch(0), replay)
    assert (replay.prepared, replay.evaluated) == (0, 1)
    assert play.visible() == ONCE
    assert repaired(play) == [[1]]
    driver.process(play.batch(1), Tasks(play, [["f"]]))


def test_a_crash_before_the_repairs_record_repeats_the_repair(play: Play) -> None:
    """Fails if the repair's transactions are committed before its record: c would be duplicated."""
    decide_and_die(play, 1)
    crash(play.driver(), play, 0, ROWS, "driver.deciding")
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert play.visible() == ONCE
    assert repaired(play) == [[1]]


def test_a_lost_repair_is_repaired_with_the_decided_rows(play: Play) -> None:
    """Fails if a repair record replaces the whole decision, including the other tasks."""
    decide_and_die(play, 0)
    crash(play.driver(), play, 0, ROWS, "driver.decided")
    (again,) = play.handles(repairs(play)[0].tasks)
    play.fence(again.transactional_id)
    replay = Tasks(play, ROWS)
    play.driver().process(play.batch(0), replay)
    assert play.visible() == ONCE
    assert replay.prepared == 1
    assert repaired(play) == [[0], [0]]


OTHER_ROWS = {
    "a row moved to another task": (("a",), ("c", "b"), ("d", "e")),
    "the lost row changed": (("a", "b"), ("x",), ("d", "e")),
    "a committed row changed": (("a", "x"), ("c",), ("d", "e")),
    "one more task": (("a", "b"), ("c",), ("d", "e"), ("c",)),
}


def test_a_replay_with_different_rows_is_in_doubt_until_a_restart_replays_the_decided_rows(play: Play) -> None:
    """Fails if the replay is not checked at all, or only its lost tasks, or only its row counts."""
    decided = decide_and_die(play, 1)
    for case, rows in OTHER_ROWS.items():
        with pytest.raises(InDoubtError, match=r"Nothing more was written.*staging=True") as caught:
            play.driver().process(play.batch(0), Tasks(play, rows))
        assert caught.value.committed == (decided[0].transaction, decided[2].transaction), case
        assert caught.value.lost == (decided[1].transaction,), case
        assert all(handle.transaction in str(caught.value) for handle in decided), case
        assert play.visible() == {"a": 1, "b": 1, "d": 1, "e": 1}, case
        assert repairs(play) == [], case
        assert play.open_transactions() == (), case
    play.driver().process(play.batch(0), Tasks(play, ROWS))
    assert play.visible() == ONCE


def staged_below(location: Path, play: Play) -> Callable[[int, Sequence[str]], str]:
    def stage(_: int, rows: Sequence[str]) -> str:
        writer = StagedFileWriter(str(location), 0, 0, keyed_views(play.name))
        for row in rows:
            writer.write(record_batch([row]))
        return str(writer.close())

    return stage


@pytest.mark.parametrize("lost", [(1,), (0, 1, 2)], ids=["some", "all"])
def test_staged_rows_are_published_even_if_the_replay_has_different_rows(
    lost: tuple[int, ...], play: Play, tmp_path: Path
) -> None:
    """Fails if the replay's rows are written instead (x), or if nothing records the publication.

    Without the record, a crash right after it publishes twice.
    """
    staging = Staging(str(tmp_path / "staging"))
    first = Tasks(play, ROWS, stage=staged_below(tmp_path / "staging", play))
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), first)
    for partition, handle in enumerate(play.decided(0)):
        play.fence(handle.transactional_id) if partition in lost else commit(play, handle)
    with pytest.raises(InjectedFault), at("driver.committed", die):
        play.driver(staging=staging).process(play.batch(0), Tasks(play, [["x"]], staging=staging))
    replay = Tasks(play, [["x"]], staging=staging)
    play.driver(staging=staging).process(play.batch(0), replay)
    assert play.visible() == ONCE
    assert (replay.prepared, replay.evaluated) == (0, 1)  # evaluated, because a stateful plan needs its state version
    assert repaired(play) == [list(lost)]
    assert not any(staging.has(str(task.staged)) for task in play.decisions()[0].tasks), (
        "staged files of proven transactions should be deleted"
    )


@pytest.mark.parametrize("rows", ["replayed", "staged"])
def test_lost_rows_are_not_written_to_another_topic(rows: str, play: Play, tmp_path: Path) -> None:
    """Fails if the repair uses the sink's new topic: the old topic would lack the lost rows forever."""
    staging = Staging(str(tmp_path / "staging")) if rows == "staged" else None
    tasks = Tasks(play, ROWS, staging=staging, stage=staged_below(tmp_path / "staging", play) if staging else None)
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), tasks)
    for partition, handle in enumerate(play.decided(0)):
        play.fence(handle.transactional_id) if partition == 1 else commit(play, handle)
    sink, other = play.sink, create_topic(play.bootstrap_servers, f"{play.name}-other")
    play.sink = dataclasses.replace(sink, topic=other)
    with pytest.raises(
        ConfigurationError,
        match=rf"batch 0 .* topic {sink.topic}, but .* topic {other}\. .* Set the sink back to topic",
    ):
        play.driver(staging=staging).process(play.batch(0), tasks)
    assert play.open_transactions() == ()
    play.sink = sink
    play.driver(staging=staging).process(play.batch(0), tasks)
    assert play.visible() == ONCE
    assert not committed(play.bootstrap_servers, other)


def test_staged_rows_without_a_topic_need_the_sinks_topic(play: Play, tmp_path: Path) -> None:
    """Fails with a bare KeyError if the sink's topic has become None since the rows were staged."""
    staging = Staging(str(tmp_path / "staging"))
    tasks = Tasks(play, ROWS, stage=staged_below(tmp_path / "staging", play), staging=staging)
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), tasks)
    for partition, handle in enumerate(play.decided(0)):
        play.fence(handle.transactional_id) if partition == 1 else commit(play, handle)
    play.sink = dataclasses.replace(play.sink, topic=None)
    with pytest.raises(ConfigurationError, match=r"batch 0 have no column 'topic'.* Restore the sink's topic setting"):
        play.driver(staging=staging).process(play.batch(0), tasks)


def test_a_batch_that_lost_transactions_and_their_staged_rows_is_in_doubt(play: Play, tmp_path: Path) -> None:
    """Fails if the staged files are not looked for."""
    staging = Staging(str(tmp_path / "staging"))
    first = Tasks(play, ROWS, stage=staged_below(tmp_path / "staging", play))
    with pytest.raises(InjectedFault), at("driver.decided", die):
        play.driver(staging=staging).process(play.batch(0), first)
    for partition, handle in enumerate(play.decided(0)):
        play.fence(handle.transactional_id) if partition == 1 else commit(play, handle)
    (tmp_path / "staging" / str(play.decisions()[0].tasks[1].staged)).unlink()
    with pytest.raises(InDoubtError):
        play.driver(staging=staging).process(play.batch(0), Tasks(play, [["x"]]))
    assert play.visible() == {"a": 1, "b": 1, "d": 1, "e": 1}


def test_a_transaction_timed_out_by_the_broker_is_repaired(kafka: KafkaService, tmp_path: Path) -> None:
    """Fails if EndTxn's response for a timed-out transaction counts as a commit, or has no consequence."""
    with playing(kafka, tmp_path, options={"kafka.transaction.timeout.ms": "6000"}) as play:
        crash(play.driver(), play, 0, [["a"], ["b"]], "driver.decided")
        in_time, late = play.decided(0)
        commit(play, in_time)
        ended = ("CompleteAbort", "Empty", "Dead")
        assert until(lambda: play.describe(late.transactional_id).state in ended, TIMED_OUT_WITHIN_S)
        play.driver().process(play.batch(0), Tasks(play, [["a"], ["b"]]))
        assert play.visible() == {"a": 1, "b": 1}
        assert repaired(play) == [[1]]
