"""Measure what small files cost: a batch's commit to a table with a long history, and reading the same rows from more files.

``make bench ARGS="--only smallfiles"``. There is no Spark and no JVM. A batch has two tasks, which write 50 rows each, one after
another. The coordinator decides it in a local checkpoint. The time is the whole batch's. Beside it, the format's own library
appends as many rows, without any guarantee. In each case, every earlier commit has added one file. A reader loads the table anew
and reads all rows into Arrow.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.counting import WrongCountError
from benchmarks.lake_tables import SmallDeltaFiles, SmallFiles, SmallIcebergFiles, rows_of
from benchmarks.measured import TWOPC, Case
from benchmarks.trigger import COMMIT, READ
from benchmarks.turns import in_turn
from twopc.attempt import TaskAttempt
from twopc.batch import Batch
from twopc.coordinator import Coordinator
from twopc.counted import counted
from twopc.files import LocalFiles
from twopc.records import TaskReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from benchmarks.settings import Settings
    from twopc.engine import Work
    from twopc.sink import TwoPhaseCommitSink

TITLE: Final = "Small files: a batch's commit to a table with a long history, and reading 100,000 rows from many files"
X_LABEL: Final = ""
ROWS: Final = 100_000
_COMMITS: Final = (1, 10, 100, 1_000)
_WHOLE: Final = (*_COMMITS, 10_000)
_QUICK: Final = (1, 20)
_TASKS: Final = 2
_TASK_ROWS: Final = 50
#: A round's sample is the median of this many times, because a single disturbed time would tilt the rule's lines.
_REPEATS: Final = 3
_FORMATS: Final[tuple[type[SmallFiles], ...]] = (SmallIcebergFiles, SmallDeltaFiles)


def cases(settings: Settings) -> dict[str, tuple[type[SmallFiles], int]]:
    """Return each case's format and number of earlier commits, by the case's name."""
    lengths = _QUICK if settings.quick else _WHOLE if settings.whole else _COMMITS
    return {
        case_name(kind, what, commits): (kind, commits)
        for kind in _FORMATS
        for commits in lengths
        for what in (READ, COMMIT)
    }


def measure(settings: Settings) -> Iterator[Case]:
    """Yield two cases for each format and length of the history."""
    for kind, commits in dict.fromkeys(found for _, found in settings.wanted(cases(settings))):
        reading, committing = (case_name(kind, what, commits) for what in (READ, COMMIT))
        with tempfile.TemporaryDirectory(prefix="twopc-bench-", ignore_cleanup_errors=True) as directory:
            table = kind(Path(directory), ROWS, commits)
            if settings.wants(reading):
                yield _reading(reading, table, commits, settings.rounds)
            if settings.wants(committing):
                yield _committing(committing, table, Path(directory), commits, settings.rounds)


def case_name(kind: type[SmallFiles], what: str, commits: int) -> str:
    """Name a case."""
    return f"{kind.title}, {what} {counted(commits, 'file' if what == READ else kind.commit)}"


def _reading(name: str, table: SmallFiles, files: int, rounds: int) -> Case:
    rows = 0

    def read() -> float:
        nonlocal rows
        found: list[pa.Table] = []
        took = _timed(lambda: found.append(table.read()))
        rows += _require(found[0].num_rows, ROWS, name)
        return took

    ran, _ = in_turn(rounds, {table.library: lambda: _median(read)}, warm_up=1)
    return Case(name=name, unit="ms", samples=ran, counted={table.library: rows}, x=files)


def _committing(name: str, table: SmallFiles, directory: Path, commits: int, rounds: int) -> Case:
    batches = iter(range(10_000))
    query = str(uuid.uuid4())
    engine = _Tasks(table.sink)
    with closing(Coordinator([table.sink], LocalFiles(directory / "checkpoint"))) as driver:

        def batch() -> float:
            number = next(batches)
            described = Batch(query, number, (f"offset-{number}",), lambda of: (f"offset-{of}",))
            return _timed(lambda: driver.process(described, engine))

        def append() -> float:
            rows = rows_of(_TASKS * _TASK_ROWS, note="theirs")
            return _timed(lambda: table.append(rows))

        sides = {TWOPC: lambda: _median(batch), f"{table.library}, append": lambda: _median(append)}
        ran, _ = in_turn(rounds, sides, warm_up=1)
    written = dict.fromkeys(ran, (rounds + 1) * _REPEATS * _TASKS * _TASK_ROWS)
    found = table.read().column("note").to_pylist()
    for side, note in zip(ran, ("ours", "theirs"), strict=True):
        _require(found.count(note), written[side], f"{name}, {side}")
    return Case(name=name, unit="ms", samples=ran, counted=written, x=commits)


class _Tasks:
    """An engine whose tasks write a few rows each, in this process."""

    def __init__(self, sink: TwoPhaseCommitSink[Any]) -> None:
        self._sink = sink

    def prepare(self, work: Work) -> list[TaskReport]:
        """See ``twopc.engine.Engine``."""
        return [self._run(work, number) for number in range(_TASKS)]

    def evaluate(self) -> None:
        """See ``twopc.engine.Engine``."""

    def _run(self, work: Work, number: int) -> TaskReport:
        sink = self._sink
        attempt = TaskAttempt(
            query_id=work.batch.query_id,
            batch_id=work.batch.batch_id,
            attempt=work.attempt,
            partition=number,
            driver_epoch=work.driver_epochs[sink.name],
            committed_through=work.committed_through,
        )
        writer = sink.create_writer(attempt)
        [rows] = rows_of(_TASK_ROWS, note="ours").to_batches()
        writer.write_rows(rows)
        handle = writer.snapshot_state(attempt.batch_id)
        writer.hand_over()
        writer.close()
        return TaskReport(
            partition=number, rows=_TASK_ROWS, checksum=0, handles={sink.name: sink.encode_handle(handle)}
        )


def _median(measure_once: Callable[[], float]) -> float:
    return statistics.median(measure_once() for _ in range(_REPEATS))


def _timed(act: Callable[[], object]) -> float:
    gc.collect()
    began = _now_ms()
    act()
    return _now_ms() - began


def _now_ms() -> float:
    return time.perf_counter() * 1000


def _require(found: int, expected: int, what: str) -> int:
    if found != expected:
        raise WrongCountError(f"{what}: found {found} rows instead of {expected}")
    return found
