"""What a run's first call does before it writes. The same code serves classic sessions and Spark Connect."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from msgspec import structs

from tests.unit.coordinator_support import die_at, records
from tests.unit.fake_sink import QUERY_ID, Cluster, FakeSink, all_rows, offsets_of
from twopc.errors import ConfigurationError, SchemaError
from twopc.files import LocalFiles
from twopc.integration.migrate.handover import Handover, Handovers, Kind
from twopc.integration.spark import run_writer
from twopc.integration.spark.handed_over import checked_once_swept, passing_the_rest
from twopc.integration.spark.options import Options
from twopc.integration.spark.query_runs import QueryRun
from twopc.integration.spark.run_writer import RunWriter
from twopc.integration.spark.several import Call, SinkFrame
from twopc.override import Overrides, ResumeAt
from twopc.settings import Settings

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twopc.batch import Batch
    from twopc.progress import Checkpoint


#: The facts of each hand-over here.
OLD: Final[Any] = {"query_id": QUERY_ID, "offsets": ()}


class SomeQuery:
    """Stands in for a run of a query."""

    query_id, run_id = QUERY_ID, "run"


class SomeMode:
    """Stands in for Spark. The checks of the columns come before anything else that needs Spark."""

    def __init__(self, output_mode: str | None = "append") -> None:
        self.output_mode = output_mode
        self.copies_functions = True

    def open_files(self, location: str) -> LocalFiles:
        return LocalFiles(location)

    def resolved(self, frames: Any) -> AbstractContextManager[Any]:
        return nullcontext(frames)

    def look(self, *_: object) -> tuple[()]:
        return ()

    def pause(self, _: int) -> None:
        raise AssertionError("rejected columns are rejected again")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """The decisions are where a query has them: in the directory ``twopc`` of its checkpoint."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    times = '{"batchWatermarkMs":0,"batchTimestampMs":1764345600000}'
    for batch in range(2):
        (offsets / str(batch)).write_text("\n".join(["v1", times, *offsets_of(batch)]))
    return Cluster(tmp_path / "twopc")


def failing(*_: object, **__: object) -> None:
    raise SchemaError("no column 'value'")


def rejected(
    cluster: Cluster, location: Path, batch_id: int, monkeypatch: pytest.MonkeyPatch, options: Options | None = None
) -> Checkpoint | None:
    """Start a run whose columns do not fit its sink."""
    monkeypatch.setattr(run_writer, "arrange", failing)
    with pytest.raises(SchemaError, match="no column 'value'") as error:
        write(cluster, location, batch_id, options)
    return error.value.checkpoint


def write(cluster: Cluster, location: Path, batch_id: int, options: Options | None = None) -> None:
    sink = FakeSink(cluster.world)
    run_writer_of(sink, location, options).write(call(sink, batch_id))


def run_writer_of(
    sink: FakeSink, location: Path, options: Options | None = None, output_mode: str | None = "append"
) -> RunWriter:
    run, mode = QueryRun(SomeQuery(), None), SomeMode(output_mode)  # type: ignore[arg-type]
    return RunWriter(run, mode, str(location), [sink], options or Options())  # type: ignore[arg-type]


def call(sink: FakeSink, batch_id: int) -> Call:
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf={}))
    return Call(batch_id, (SinkFrame("", frame, (sink,)),), {})


@pytest.mark.parametrize("batch_id", [0, 1], ids=["the decided batch", "the next batch"])
def test_rejected_columns_do_not_delay_a_decided_batch_and_write_nothing(
    batch_id: int, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if decided transactions stay open until they expire, which would lose their rows."""
    die_at(cluster, cluster.start(), "driver.decided", 0)
    assert not cluster.store.visible()
    checkpoint = rejected(cluster, tmp_path, batch_id, monkeypatch)
    assert cluster.store.visible() == all_rows(0)
    assert not cluster.store.pending()
    assert checkpoint is not None and checkpoint.cause is not None and checkpoint.cause.phase == "check"


def died_after_the_call_for(name: str, cluster: Cluster) -> None:
    """Let the driver die after it has decided batch 0 with a DataFrame for one of the sinks "a" and "b"."""
    query = cluster.start("a", "b")
    query.engine._sinks = [one for one in query.engine._sinks if one.name == name]  # type: ignore[assignment]
    run_task = query.engine._run_task
    query.engine._run_task = lambda *task: structs.replace(run_task(*task), frame_name=name)  # type: ignore[method-assign]
    die_at(cluster, query, "driver.committed", 0)


def replayed(cluster: Cluster, location: Path, frames: dict[str, list[str]], batch_id: int = 0) -> None:
    sinks = {name: FakeSink(cluster.world, name) for name in ("a", "b")}
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf={}))
    passed = tuple(SinkFrame(name, frame, tuple(sinks[one] for one in names)) for name, names in frames.items())
    run: Any = QueryRun(SomeQuery(), None)  # type: ignore[arg-type]
    mode: Any = SomeMode()
    RunWriter(run, mode, str(location), [*sinks.values()], Options()).write(Call(batch_id, passed, {}))


def test_a_second_call_is_not_the_replay_of_the_first_one_after_a_restart(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function has recorded that its first call returned, so it makes only the second one. Its rows would be lost."""
    monkeypatch.setattr(run_writer, "arrange", failing)
    died_after_the_call_for("a", cluster)
    with pytest.raises(
        ConfigurationError, match=r"only for 'b', but the batch was already decided with DataFrames only for 'a'"
    ):
        replayed(cluster, tmp_path, {"b": ["b"]})


@pytest.mark.parametrize(
    "frames",
    [{"b": ["b"]}, {"a": ["a"], "b": ["b"]}, {"a": ["a", "b"]}, {"": ["a", "b"]}],
    ids=["the same", "one more", "shared", "one for all"],
)
def test_a_call_with_a_dataframe_for_a_decided_sink_may_be_the_replay(
    frames: dict[str, list[str]], cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code may have changed. A DataFrame has the name of its first sink, which may be another one now."""
    monkeypatch.setattr(run_writer, "arrange", failing)
    died_after_the_call_for("b", cluster)
    with pytest.raises(SchemaError):
        replayed(cluster, tmp_path, frames)


def test_the_next_batch_may_be_for_another_sink(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_writer, "arrange", failing)
    died_after_the_call_for("a", cluster)
    with pytest.raises(SchemaError):
        replayed(cluster, tmp_path, {"b": ["b"]}, batch_id=1)


def test_rejected_columns_do_not_keep_undecided_transactions_open(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open transactions hold back every reader of the output."""
    die_at(cluster, cluster.start(), "driver.confirmed", 0)
    assert cluster.store.pending()
    rejected(cluster, tmp_path, 0, monkeypatch)
    assert not cluster.store.pending() and not cluster.store.visible()


def test_rejected_columns_of_a_first_start_leave_the_checkpoint_unbound(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected(cluster, tmp_path, 0, monkeypatch)
    assert not cluster.store.visible()
    assert not [name for name in cluster.files.names("") if name.startswith("binding")]


@pytest.mark.parametrize(
    ("former", "is_logged"),
    [
        ([], True),
        ([Handover(**OLD, batch_id=0, kind=Kind.NOTHING)], False),
        (
            [Handover(**OLD, batch_id=0, kind=Kind.NOTHING, is_back=True), Handover(**OLD, batch_id=1, kind=Kind.REST)],
            False,
        ),
    ],
    ids=["nobody knows", "the batch has not begun", "TakeOver passes the rest"],
)
def test_an_adoption_logs_when_its_first_batch_was_planned(
    former: list[Handover],
    is_logged: bool,  # noqa: FBT001 - a case
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A writer that was killed in this batch has written some of its rows, and nothing shows this to the toolkit."""
    for one in former:
        Handovers(cluster.files).add(one)
    options = Options(overrides=Overrides(adopt_query_id=QUERY_ID))
    with passing_the_rest(1, ()):
        rejected(cluster, tmp_path, 1, monkeypatch, options)
    logged = [record.getMessage() for record in caplog.records if "AdoptQuery" in record.getMessage()]
    assert len(logged) == is_logged
    assert not logged or "begins with batch 1, which Spark planned at 2025-11-28T16:00:00+00:00" in logged[0]


@pytest.mark.parametrize("kind", [Kind.REST, Kind.NOTHING])
@pytest.mark.parametrize("begun", [None, "driver.confirmed"], ids=["not begun", "begun"])
def test_a_batch_after_the_handed_over_one_is_not_the_first(
    kind: Kind, begun: str | None, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's function has caught an error of batch 1. AdoptQuery and ResumeAt would lose its missing rows."""
    is_whole = kind is Kind.NOTHING
    Handovers(cluster.files).add(Handover(**OLD, batch_id=1 - is_whole, kind=kind))
    times = (tmp_path / "offsets/1").read_text().splitlines()[1]
    (tmp_path / "offsets/2").write_text("\n".join(["v1", times, *offsets_of(2)]))
    adopting = Overrides(adopt_query_id=QUERY_ID)
    if begun is not None:
        die_at(cluster, cluster.start(settings=Settings(overrides=adopting)), begun, 1)
    for overrides in (adopting, replace(adopting, resume_at=ResumeAt(2, QUERY_ID))):
        with pytest.raises(
            ConfigurationError, match=r"recorded batch 1 as done.*--old-query-finished 1.*offsets/"
        ) as raised:
            write(cluster, tmp_path, 2, Options(overrides=overrides))
        is_gap = begun is not None and overrides is adopting
        assert ("will expire (kafka.transaction.timeout.ms)" in str(raised.value)) is is_gap
    assert not cluster.store.visible()
    with passing_the_rest(1, ()):
        rejected(cluster, tmp_path, 1, monkeypatch, Options(overrides=adopting))


@pytest.mark.parametrize("point", ["driver.confirmed", "driver.decided"])
def test_a_start_looks_for_the_old_querys_rows_once_its_own_open_transactions_hide_none(
    point: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this query has decided the batch, its own rows are in the output."""
    Handovers(cluster.files).add(Handover(**OLD, batch_id=0, kind=Kind.REST))
    die_at(cluster, cluster.start(), point, 0)
    assert cluster.store.pending()
    hidden = list[int]()

    def check() -> None:
        hidden.append(len(cluster.store.pending()))
        raise ConfigurationError("the old query has written")

    with passing_the_rest(0, ()), checked_once_swept(check):
        if point == "driver.decided":
            rejected(cluster, tmp_path, 0, monkeypatch)
            assert not hidden
            return
        for _ in range(2):  # the next start checks again
            with pytest.raises(ConfigurationError, match="the old query has written"):
                write(cluster, tmp_path, 0)
    assert hidden == [0, 0]
    assert not cluster.store.visible()


def test_a_batch_after_a_decided_handed_over_one_is_not_skipped(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Handovers(cluster.files).add(Handover(**OLD, batch_id=0, kind=Kind.REST))
    cluster.start().run(0)
    rejected(cluster, tmp_path, 1, monkeypatch)


def test_a_query_whose_last_batch_is_an_epoch_of_a_continuous_trigger_is_not_adopted(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its files in offsets/ and commits/ always have the same numbers, although the running epoch is already in the output."""
    (tmp_path / "offsets/0").write_text("\n".join(["v1", "", *offsets_of(0)]))
    with pytest.raises(ConfigurationError, match=r"trigger\(continuous=…\).*trigger\(availableNow=True\)"):
        write(cluster, tmp_path, 1, Options(overrides=Overrides(adopt_query_id=QUERY_ID)))
    assert not [name for name in cluster.files.names("") if name.startswith("binding")]


def test_a_query_that_has_decided_a_batch_since_a_continuous_trigger_is_not_sent_back_to_the_old_writer(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The override may stay in the code. The old query would write the decided batch again."""
    (tmp_path / "offsets/0").write_text("\n".join(["v1", "", *offsets_of(0)]))
    adopting = Overrides(adopt_query_id=QUERY_ID)
    die_at(cluster, cluster.start(settings=Settings(overrides=adopting)), "driver.decided", 1)
    rejected(cluster, tmp_path, 1, monkeypatch, Options(overrides=adopting))


def test_a_query_that_has_decided_a_batch_is_not_adopted_again_after_the_old_writer_has_written_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Batch 0 is this query's. Batch 1 is an epoch of the old query, and the next epoch may already be in the output."""
    adopting = Overrides(adopt_query_id=QUERY_ID)
    cluster.start(settings=Settings(overrides=adopting)).run(0)
    planned = (tmp_path / "offsets/1").read_text().splitlines()[1]
    (tmp_path / "offsets/1").write_text("\n".join(["v1", "", *offsets_of(1)]))
    (tmp_path / "offsets/2").write_text("\n".join(["v1", planned, *offsets_of(2)]))
    with pytest.raises(ConfigurationError, match=r"trigger\(continuous=…\).*trigger\(availableNow=True\)"):
        write(cluster, tmp_path, 2, Options(overrides=adopting))


def test_a_query_that_was_adopted_before_logs_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The override may stay in the code."""
    adopting = Overrides(adopt_query_id=QUERY_ID)
    die_at(cluster, cluster.start(settings=Settings(overrides=adopting)), "driver.confirmed", 1)
    rejected(cluster, tmp_path, 1, monkeypatch, Options(overrides=adopting))
    assert not [record for record in caplog.records if "AdoptQuery" in record.getMessage()]


def test_a_run_that_finishes_decided_batches_after_a_rollback_checks_the_next_batch_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check belongs to a run's first batch, but here the run may write only the batches that were decided before."""
    cluster.start().run(0)
    sink, checked = FakeSink(cluster.world), list[int]()

    def check(_files: object, batch: Batch, _decided: object) -> int:
        checked.append(batch.batch_id)
        return 0

    monkeypatch.setattr(run_writer, "require_taken_over", check)
    monkeypatch.setattr(
        RunWriter,
        "_attempt",
        lambda self, _files, _call, _found, batch, pending, **_: (
            self._recovered(SimpleNamespace(conf={}), None, batch, pending) if self._coordinator is None else None
        ),
    )
    writer = run_writer_of(sink, tmp_path)
    for batch_id in (0, 1):
        writer.write(call(sink, batch_id))
    writer.close()
    assert checked == [0, 1]


@pytest.mark.parametrize("point", ["driver.decided", "driver.confirmed"])
def test_a_query_that_ran_on_after_a_rollback_finishes_a_decided_batch_and_fences_nobody_otherwise(
    point: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback could not fence it. Nothing of an undecided batch is visible, so the old sink may write that batch."""
    cluster.start().run(0)
    Handovers(cluster.files).add(Handover(**OLD, batch_id=0, kind=Kind.NOTHING, is_back=True))
    die_at(cluster, cluster.start(), point, 1)
    if point == "driver.decided":
        rejected(cluster, tmp_path, 1, monkeypatch)
        assert cluster.store.visible() == all_rows(0, 1)
        return
    before = records(cluster, object)
    with pytest.raises(ConfigurationError, match="has returned this checkpoint to the old sink"):
        write(cluster, tmp_path, 1)
    assert (records(cluster, object), cluster.store.visible()) == (before, all_rows(0))


def test_a_half_written_batch_is_finished_in_a_classic_session(cluster: Cluster, tmp_path: Path) -> None:
    """Spark Connect does not offer interceptors, so the advice must not be tried there."""
    Handovers(cluster.files).add(Handover(**OLD, batch_id=1, kind=Kind.REST))
    with pytest.raises(ConfigurationError, match=r"half-written.*in a classic session.*interceptors=\[.*TakeOver"):
        write(cluster, tmp_path, 1)


@pytest.mark.parametrize("copies", [True, False], ids=["a classic session", "Spark Connect"])
def test_functions_that_other_queries_can_replace_are_checked_in_each_batch(
    copies: bool,  # noqa: FBT001 - a case
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under Spark Connect, each request uses the functions that the session has now, and all queries share the session."""
    classes = {"xxhash64": "org.apache.spark.sql.catalyst.expressions.XxHash64"}
    catalog = SimpleNamespace(getFunction=lambda name: SimpleNamespace(className=classes[name]))
    sink, asked = FakeSink(cluster.world), list[str]()
    writer = run_writer_of(sink, tmp_path)
    monkeypatch.setattr(run_writer, "arrange", lambda *_, **__: SimpleNamespace(functions={"xxhash64"}))
    monkeypatch.setattr(writer._mode, "copies_functions", copies)
    one = call(sink, 0)
    session: Any = one.frames[0].frame.sparkSession
    session.catalog = catalog

    def engine(*_: object) -> None:
        asked.append("engine")
        raise SchemaError("the functions are Spark's own")

    monkeypatch.setattr(writer._mode, "engine", engine, raising=False)
    monkeypatch.setattr(writer._mode, "is_stateless", True, raising=False)
    monkeypatch.setattr(writer._mode, "same_rows", lambda *_: True, raising=False)
    with pytest.raises(SchemaError):
        writer.write(one)
    classes["xxhash64"] = "org.apache.spark.sql.classic.UDFRegistration$$Lambda$3912"
    with pytest.raises(SchemaError if copies else ConfigurationError, match="Spark's own"):
        writer.write(one)
    assert len(asked) == (2 if copies else 1)


@pytest.mark.parametrize(
    ("output_mode", "only_appends", "is_logged"),
    [
        ("complete", True, True),
        ("complete", False, False),
        ("append", True, False),
        ("update", True, False),
        (None, True, False),
    ],
)
def test_a_run_logs_that_a_sink_that_only_appends_keeps_every_whole_result(
    output_mode: str | None,
    only_appends: bool,  # noqa: FBT001 - a case
    is_logged: bool,  # noqa: FBT001 - a case
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Spark's own writers replace the table in this mode, so a query that was migrated would multiply its rows silently."""
    monkeypatch.setattr(FakeSink, "only_appends", only_appends)
    monkeypatch.setattr(run_writer, "arrange", failing)
    sink = FakeSink(cluster.world)
    with pytest.raises(SchemaError):
        run_writer_of(sink, tmp_path, output_mode=output_mode).write(call(sink, 0))
    logged = [record.getMessage() for record in caplog.records if "outputMode" in record.getMessage()]
    assert len(logged) == is_logged
    assert not logged or f"append every row and delete none: {sink.name!r}" in logged[0]
