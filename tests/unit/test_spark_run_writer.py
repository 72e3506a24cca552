"""What a run's first call does before it writes. The same code serves classic sessions and Spark Connect."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.coordinator_support import die_at
from tests.unit.fake_sink import QUERY_ID, Cluster, FakeSink, all_rows, offsets_of
from twopc.errors import SchemaError
from twopc.files import LocalFiles
from twopc.integration.spark import run_writer
from twopc.integration.spark.options import Options
from twopc.integration.spark.query_runs import QueryRun
from twopc.integration.spark.run_writer import RunWriter
from twopc.integration.spark.several import Call, SinkFrame

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twopc.progress import Checkpoint


class SomeQuery:
    """Stands in for a run of a query."""

    query_id, run_id = QUERY_ID, "run"


class SomeMode:
    """Stands in for Spark. The checks of the columns come before anything else that needs Spark."""

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
    for batch in range(2):
        (offsets / str(batch)).write_text("\n".join(["v1", "{}", *offsets_of(batch)]))
    return Cluster(tmp_path / "twopc")


def rejected(cluster: Cluster, location: Path, batch_id: int, monkeypatch: pytest.MonkeyPatch) -> Checkpoint | None:
    """Start a run whose columns do not fit its sink."""

    def arrange(*_: object, **__: object) -> None:
        raise SchemaError("no column 'value'")

    monkeypatch.setattr(run_writer, "arrange", arrange)
    sink, run, mode = FakeSink(cluster.world), QueryRun(SomeQuery(), None), SomeMode()  # type: ignore[arg-type]
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf={}))
    writer = RunWriter(run, mode, str(location), [sink], Options())  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no column 'value'") as error:
        writer.write(Call(batch_id, (SinkFrame("", frame, (sink,)),), {}))
    return error.value.checkpoint


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
