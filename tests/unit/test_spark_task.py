"""A task's work with its rows, and its report, outside of a Spark worker."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.coordinator_support import fail
from tests.unit.fake_sink import FakeSink, FakeWriter, World
from twopc.attempt import Attempt
from twopc.crash_points import arm
from twopc.engine import Publish, Repair, Write
from twopc.errors import BadRecordError, ConfigurationError, RetriableError, SchemaError, UnavailableError
from twopc.integration.spark import task
from twopc.integration.spark.installed import HERE
from twopc.integration.spark.kept import Runs
from twopc.integration.spark.plan_partitions import PARTITION as PLAN_PARTITION
from twopc.integration.spark.staging import Staging
from twopc.integration.spark.task import PrepareTask, TaskResult
from twopc.integration.spark.views import CHECKSUM, View
from twopc.records import Part
from twopc.sinks.kafka import KafkaSink
from twopc.sinks.redis import RedisSink
from twopc.sinks.redis.mappings import IncrBy
from twopc.testing.crash_points import InjectedFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twopc.attempt import TaskAttempt
    from twopc.engine import Mode
    from twopc.records import TaskReport

STAGE, PARTITION, ATTEMPT = 7, 1, 2
VALUES = View(columns=(("value", 0),))
NOTHING = Repair({}, 9, frozenset())
COUNTER = RedisSink(name="totals", url="redis://nowhere", mapping=IncrBy("total", by="value"))
LETTERS = KafkaSink(name="letters", bootstrap_servers="nowhere:1", topic="bad")


@pytest.fixture(autouse=True)
def _fake_task_context(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(stageId=lambda: STAGE, partitionId=lambda: PARTITION, attemptNumber=lambda: ATTEMPT)
    monkeypatch.setattr(task, "TaskContext", SimpleNamespace(get=lambda: context))


@pytest.fixture
def world() -> World:
    return World()


def given(*rows: tuple[int | None, int]) -> pa.RecordBatch:
    """A batch of rows with their hashes."""
    values, hashes = zip(*rows, strict=True)
    return pa.record_batch({"0": pa.array(values, pa.int64()), CHECKSUM: pa.array(hashes, pa.int64())})


def task_of(
    *sinks: Any,
    mode: Mode = Write(),  # noqa: B008 - the default is immutable
    bad_rows: str = "",
    staging: Staging | None = None,
) -> PrepareTask:
    return PrepareTask(
        runs=Runs("run", frozenset({"run"})),
        sinks=sinks,
        query_id="a",
        batch_id=0,
        attempt=Attempt(0, 1),
        driver_epochs={sink.name: 0 for sink in sinks},
        committed_through=-1,
        mode=mode,
        frame_name="",
        first_number=0,
        first_task=0,
        staging=staging,
        views={sink.name: View(columns=VALUES.columns, of_bad_rows=sink.name == bad_rows) for sink in sinks},
        driver=HERE,
    )


def result(made: PrepareTask, *batches: pa.RecordBatch) -> TaskResult:
    (answer,) = made.run(batches)
    return msgspec.json.decode(answer.column("result")[0].as_py(), type=TaskResult)


def reported(made: PrepareTask, *batches: pa.RecordBatch) -> TaskReport:
    found = result(made, *batches)
    assert found.report is not None and found.stage == STAGE
    return found.report


def test_a_task_reports_the_rows_of_all_its_arrow_batches(world: World) -> None:
    report = reported(task_of(FakeSink(world)), given((1, 5), (2, 6)), given((3, 7)))
    assert (report.partition, report.rows, report.checksum) == (PARTITION, 3, 18)
    assert list(report.handles) == ["fake"]
    assert [one.rows for one in world.store().transactions.values()] == [[1, 2, 3]]


def test_a_task_whose_view_loses_rows_is_not_decided(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch counts as complete after its decision, so nothing would ever write the missing rows."""
    monkeypatch.setattr(View, "_named", lambda _, rows: rows.slice(rows.num_rows))
    found = result(task_of(FakeSink(world)), given((1, 5), (2, 6)))
    assert found.report is None and found.error is not None
    assert found.error[0] == "FatalError"
    assert "sink 'fake' received 0 of its 2 rows. No part of this attempt is decided" in found.error[1]
    assert not world.store().transactions


@pytest.mark.parametrize("mode", [Write(), NOTHING])
def test_a_worker_with_other_code_than_the_drivers_writes_nothing(world: World, mode: Mode) -> None:
    """Its code may write other keys or values."""
    driver = replace(HERE, digest="0123456789ab", place="/driver/twopc")
    found = result(replace(task_of(FakeSink(world), mode=mode), driver=driver), given((1, 5)))
    assert found.report is None and found.error is not None
    assert found.error[0] == "ConfigurationError"
    for said in (f"host {socket.gethostname()}", str(driver), str(HERE), "wrote nothing", "Install the same version"):
        assert said in found.error[1]
    assert not world.store().transactions


def test_a_task_from_a_driver_that_does_not_send_its_code_writes_nothing(world: World) -> None:
    """Such a driver is older. Its pickled task lacks the field, so unpickling leaves the default of the worker's class."""
    made = task_of(FakeSink(world))
    del vars(made)["driver"]
    found = result(made, given((1, 5)))
    assert found.error is not None and "The driver runs version unknown in an unknown place" in found.error[1]
    assert not world.store().transactions


def test_a_vote_contains_the_tasks_waiting_times_for_its_rows_and_for_the_flush(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(task, "time", SimpleNamespace(monotonic=lambda: now[0]))
    arm("task.prepared", lambda: now.__setitem__(0, now[0] + 4.0))

    def slow_rows() -> Iterator[pa.RecordBatch]:
        for number in range(2):
            now[0] += 1.5
            yield given((number, 5))

    (answer,) = task_of(FakeSink(world)).run(slow_rows())
    vote = msgspec.json.decode(answer.column("result")[0].as_py(), type=TaskResult).acknowledgement
    assert vote is not None
    assert (vote.partition, vote.attempt, vote.rows) == (PARTITION, ATTEMPT, 2)
    assert (vote.took_ms, vote.read_ms, vote.flush_ms) == (7_000, 3_000, 4_000)
    assert vote.host


def test_a_task_makes_its_worker_keep_the_archives(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(task, "keep_archives", lambda: kept.append(True))
    reported(task_of(FakeSink(world)), given((1, 5)))
    assert kept == [True]


def test_a_task_has_its_worker_save_address_space_before_a_client_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(task, "save_address_space", lambda: begun.append(len(world.store().transactions)))
    reported(task_of(FakeSink(world)), given((1, 5)))
    assert begun == [0]


def test_a_checksum_has_64_bits_over_any_number_of_arrow_batches(world: World) -> None:
    assert reported(task_of(FakeSink(world)), given((1, -1)), given((2, -1))).checksum == 2**64 - 2


def test_the_checksum_depends_on_which_rows_are_bad() -> None:
    """Otherwise, a replay with other bad rows could write one of them nowhere."""
    nowhere = task_of(COUNTER, LETTERS, mode=NOTHING, bad_rows="letters")
    sound, first, second = (
        reported(nowhere, given(*rows)).checksum
        for rows in ([(1, 5), (2, 6)], [(None, 5), (2, 6)], [(1, 5), (None, 6)])
    )
    assert len({sound, first, second}) == 3


def test_a_task_writes_only_the_requested_rows_and_reports_all_of_them(world: World) -> None:
    sinks = FakeSink(world, "one"), FakeSink(world, "other")
    report = reported(
        task_of(*sinks, mode=Repair({"one": frozenset({("", 0)}), "other": frozenset({("", 1)})}, 9, frozenset())),
        given((1, 5)),
    )
    assert (report.rows, report.checksum, list(report.handles)) == (1, 5, ["one"])
    assert not world.store("other").transactions


def test_a_task_of_a_replay_writes_only_the_rows_of_lost_partitions(world: World) -> None:
    """The task may have other partitions now, and rows of two partitions in one Arrow batch."""
    sinks = FakeSink(world, "one"), FakeSink(world, "other")
    lost = {"one": frozenset({("", 4), ("", 9)}), "other": frozenset({("", 6), ("elsewhere", 4)})}
    rows = [
        pa.record_batch({"0": pa.array(values), CHECKSUM: pa.array(values), PLAN_PARTITION: pa.array(at, pa.int32())})
        for values, at in (([10, 20], [4, 4]), ([30, 40, 50], [4, 6, 9]), ([60], [9]))
    ]
    report = reported(task_of(*sinks, mode=Repair(lost, 9, frozenset())), *rows)
    assert report.parts == (Part(4, 3, 60), Part(6, 1, 40), Part(9, 2, 110))
    assert (report.partition, report.rows, report.checksum) == (PARTITION, 6, 210)
    written = {name: [one.rows for one in world.store(name).transactions.values()] for name in ("one", "other")}
    assert written == {"one": [[10, 20, 30, 50, 60]], "other": [[40]]}


def test_a_handed_over_transaction_outlives_its_task(world: World) -> None:
    reported(task_of(FakeSink(world)), given((1, 5)))
    assert [one.state for one in world.store().transactions.values()] == ["prepared"]


def publishing(
    tmp_path: Path, *sinks: FakeSink, lost: frozenset[tuple[str, int]]
) -> tuple[PrepareTask, tuple[TaskReport, ...]]:
    """A task that publishes the staged file of partition 5, the second lost one, and the decided reports."""
    made = task_of(*sinks, staging=Staging(str(tmp_path)))
    staged = reported(replace(made, mode=NOTHING), given((1, 5), (2, 6)))
    tasks = tuple(msgspec.structs.replace(staged, partition=partition) for partition in (2, 5))
    return replace(made, mode=Publish(lost, tasks), views={}), tasks


def test_a_task_publishes_the_rows_of_its_staged_file_under_its_decided_number(world: World, tmp_path: Path) -> None:
    made, tasks = publishing(tmp_path, FakeSink(world), lost=frozenset({("fake", 5)}))
    report = reported(made, given((99, 7)))
    ((name, transaction),) = world.store().transactions.items()
    assert (transaction.state, transaction.rows) == ("prepared", [1, 2])
    assert report == msgspec.structs.replace(tasks[1], handles={"fake": {"transaction": name}})


def test_for_each_sink_only_its_lost_rows_are_published(world: World, tmp_path: Path) -> None:
    sinks = FakeSink(world, "one"), FakeSink(world, "two")
    made, _tasks = publishing(tmp_path, *sinks, lost=frozenset({("one", 2), ("two", 5)}))
    assert list(reported(made, given((99, 7))).handles) == ["two"]
    assert not world.store("one").transactions


def test_a_failed_publication_aborts_its_own_transaction(world: World, tmp_path: Path) -> None:
    made, _tasks = publishing(tmp_path, FakeSink(world), lost=frozenset({("fake", 5)}))
    arm("task.prepared", fail)
    with pytest.raises(InjectedFault):
        reported(made, given((99, 7)))
    assert {one.state for one in world.store().transactions.values()} == {"aborted"}


@pytest.mark.parametrize("step", ["write", "pre_commit"])
@pytest.mark.parametrize("kind", [SchemaError, BadRecordError, ConfigurationError])
def test_a_sink_that_rejects_staged_rows_needs_its_former_settings(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], step: str
) -> None:
    """The sink's own advice is for a DataFrame. No change to the query's DataFrame changes the rows of a decided batch."""

    def reject(*_: Any) -> None:
        raise kind("there is no column 'x': include this column in the DataFrame")

    made, _tasks = publishing(tmp_path, FakeSink(world), lost=frozenset({("fake", 5)}))
    monkeypatch.setattr(FakeWriter, step, reject)
    found = result(made, given((99, 7)))
    assert found.report is None and found.error is not None
    assert found.error[0] == kind.__name__
    for said in (
        "sink 'fake' cannot write staged rows of batch 0",
        "batch stays decided",
        "ndo the change, and restart the query",
        "A change to the DataFrame does not help",
        "Cause: there is no column 'x'",
    ):
        assert said in found.error[1]


def test_a_damaged_staged_file_is_not_blamed_on_the_sinks_settings(world: World, tmp_path: Path) -> None:
    made, tasks = publishing(tmp_path, FakeSink(world), lost=frozenset({("fake", 5)}))
    (tmp_path / str(tasks[1].staged)).unlink()
    found = result(made, given((99, 7)))
    assert found.error is not None and "are missing" in found.error[1] and "Undo the change" not in found.error[1]


def test_a_permanent_error_is_returned_and_any_other_error_is_left_to_spark(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> None:
        def write(*_: Any) -> None:
            raise error

        monkeypatch.setattr(FakeWriter, "write", write)

    fail(BadRecordError("it is too large"))
    assert result(task_of(FakeSink(world)), given((1, 5))) == TaskResult(
        stage=STAGE, error=("BadRecordError", f"task {PARTITION}: it is too large")
    )
    fail(RetriableError("no answer"))
    with pytest.raises(RetriableError, match="no answer"):
        result(task_of(FakeSink(world)), given((1, 5)))
    assert {one.state for one in world.store().transactions.values()} == {"aborted"}


@pytest.mark.parametrize("is_bad", [False, True])
def test_an_error_while_a_writer_closes_neither_replaces_the_result_nor_skips_another_writer(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_bad: bool
) -> None:
    closed: list[str] = []

    def close(writer: FakeWriter) -> None:
        closed.append(writer._name)
        raise RuntimeError("can't start new thread")

    def reject(*_: Any) -> None:
        raise BadRecordError("it is too large")

    monkeypatch.setattr(FakeWriter, "close", close)
    if is_bad:
        monkeypatch.setattr(FakeWriter, "write", reject)
    got = result(task_of(FakeSink(world, "one"), FakeSink(world, "two")), given((1, 5)))
    assert got.error == (("BadRecordError", f"task {PARTITION}: it is too large") if is_bad else None)
    assert len(closed) == 2
    assert "the writer of sink 'one' could not be closed" in caplog.text


class StoreBusyError(UnavailableError):
    """A class that a user-defined sink derives."""


class FencedError(BadRecordError):  # noqa: N818, RUF100 - its name is also that of another class in twopc.errors
    """As above."""


@pytest.mark.parametrize("step", ["create_writer", "write", "pre_commit"])
def test_an_error_of_a_sinks_own_class_reaches_the_driver_as_the_nearest_public_class(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(error: Exception) -> None:
        def stop(*_: Any) -> None:
            raise error

        monkeypatch.setattr(FakeSink if step == "create_writer" else FakeWriter, step, stop)

    fail(StoreBusyError("it is busy"))
    with pytest.raises(UnavailableError, match="it is busy") as raised:
        result(task_of(FakeSink(world)), given((1, 5)))
    assert type(raised.value) is UnavailableError
    fail(FencedError("it is too large"))
    assert result(task_of(FakeSink(world)), given((1, 5))).error == (
        "BadRecordError",
        f"task {PARTITION}: it is too large",
    )
    assert {one.state for one in world.store().transactions.values()} <= {"aborted"}


def test_a_writer_that_cannot_be_created_leaves_no_other_writer_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def create(sink: FakeSink, attempt: TaskAttempt) -> FakeWriter:
        if sink.name == "two":
            raise BadRecordError("no")
        return FakeWriter(world, sink.name, attempt)

    monkeypatch.setattr(FakeSink, "create_writer", create)
    monkeypatch.setattr(FakeWriter, "close", lambda writer: closed.append(writer._name))
    made = task_of(FakeSink(world, "one"), FakeSink(world, "two"))
    assert result(made, given((1, 5))).error == ("BadRecordError", f"task {PARTITION}: no")
    assert closed == ["one.0.0"]


def test_a_worker_does_not_import_the_drivers_modules() -> None:
    """Otherwise, every new Python worker would take a fifth of a second longer, or more."""
    import_all = "import twopc.integration.spark.task, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", import_all], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "twopc.integration.spark.views" in imported
    assert not imported & {
        "twopc.integration.spark.foreach_batch",
        "twopc.coordinator",
        "sinks",
        "confluent_kafka",
        "kafka",
    }
