"""The loop itself: feed, start, kill, restart, until all input is processed; then count."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from integration.services.java import java_home
from integration.services.query_processes import QueryProcesses
from integration.services.spark_class_data import driver_flags
from twopc.testing.checkers.rows import not_once, out_of_order
from twopc.testing.crash_points import DAEMON_MODULE
from twopc.testing.kill_loop.kills import ALWAYS_SHOWS, Kill, Moment, planned
from twopc.testing.kill_loop.outcome import Outcome
from twopc.testing.kill_loop.records import Files, key_of
from twopc.testing.kill_loop.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twopc.testing.kill_loop.records import Source

_KILLED: Final = 128 + 9
_POLL_S: Final = 0.05
#: A run has two batches. Spark starts in 5 s on a quiet machine, and a batch takes a second.
_BATCHES: Final = 2
_RUN_TIMEOUT_S: Final = 300
#: How long the other tasks of a held batch have to show their rows.
_SETTLE_S: Final = 5.0
_LOG_LINES: Final = 40
_WORKER_DIED: Final = "Python worker exited unexpectedly"


class QueryFailedError(RuntimeError):
    """The query under test ended, or hung, by itself. The message has the end of its log."""


def kill_loop(  # noqa: PLR0913 - all but the first two by name, most of them with defaults
    read: Callable[[], Iterable[int | str | bytes]],
    *,
    directory: Path,
    foreach_batch: str | Callable[..., None] | None = None,
    query: str | Callable[..., Any] | None = None,
    source: Source | None = None,
    rows: int = 80,
    kills: int = 2,
    seed: int | None = None,
    moments: Sequence[Moment] = ALWAYS_SHOWS,
    crash_points: Sequence[str] = (),
    spark: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a query until it has processed all its input, kill it on the way, and count what its output holds.

    Every run is a process of its own with a real Spark (``local[2]``), and gets its share of the input only, so that
    every kill finds work in progress. A kill ends the driver, its JVM and its Python workers at once.

    Args:
        read: returns the numbers that the output holds now (the column ``number`` or ``value``), each as often as it is
            there. It is also called while the query runs, when the output may not exist yet.
        directory: an empty directory for the input, the checkpoint and the logs.
        foreach_batch: what ``foreachBatch`` calls, ``function(frame, batch_id)``; a callable or ``"module:name"``.
        query: instead of ``foreach_batch``: ``function(frame, checkpoint)`` returns the ``DataStreamWriter``. The loop
            adds the checkpoint and the trigger, and starts it.
        source: where the query reads; JSON files by default. See :mod:`twopc.testing.kill_loop.records`.
        rows: how many records it is fed in all.
        kills: how often it is killed.
        seed: what the kills are drawn from; drawn itself by default.
        moments: the first kills, before those that are drawn.
        crash_points: where to kill first, for queries that use this toolkit; see :data:`twopc.crash_points.POINTS`.
        spark: further settings of the Spark session.

    Raises:
        QueryFailedError: the query ended, or hung, by itself.
        ValueError: neither ``foreach_batch`` nor ``query`` was given, or both; or too few rows.
    """
    target = foreach_batch if query is None else query
    if target is None or (foreach_batch is not None and query is not None):
        raise ValueError("kill_loop() takes foreach_batch=… or query=…, one of them")
    if rows < _BATCHES * (kills + 1) * 2:
        raise ValueError(f"kill_loop(rows={rows}, kills={kills}): give at least {_BATCHES * (kills + 1) * 2} rows")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    directory.mkdir(parents=True, exist_ok=True)
    loop = _Loop(
        read=read,
        directory=directory,
        target=target if isinstance(target, str) else _pickled(target, directory),
        is_query=query is not None,
        source=source or Files(directory / "input"),
        batch_rows=rows // (kills + 1) // _BATCHES,
        spark={**_settings(directory), **(spark or {})},
        java_home=str(java_home()),
    )
    print(f"kill_loop: seed {seed}, logs in {directory}", flush=True)  # noqa: T201 - pytest shows it with a failure
    began = time.monotonic()
    for kill in planned(seed, kills, moments=moments, crash_points=crash_points):
        loop.feed(_BATCHES * loop.batch_rows)
        (loop.kills if loop.run(kill) else loop.missed).append(str(kill))
    loop.feed(rows - loop.fed)
    loop.run(None)
    return loop.outcome(seed, time.monotonic() - began)


def _pickled(function: Callable[..., Any], directory: Path) -> str:
    """Pickle by value: a test module cannot be imported by name in another process."""
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")  # it has no types
    module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled = cloudpickle.dumps(function)
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    path = directory / "function.pickle"
    path.write_bytes(pickled)
    return str(path)


def _settings(directory: Path) -> dict[str, str]:
    return {
        "spark.master": "local[2]",
        "spark.app.name": "kill_loop",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{driver_flags()} -Djava.io.tmpdir={directory} -Dderby.system.home={directory}",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": DAEMON_MODULE,
    }


@dataclass
class _Loop:
    read: Callable[[], Iterable[int | str | bytes]]
    directory: Path
    target: str
    is_query: bool
    source: Source
    batch_rows: int
    spark: dict[str, str]
    java_home: str
    kills: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    fed: int = 0
    _runs: int = 0

    def feed(self, count: int) -> None:
        """Add so many records, a batch at a time."""
        for first in range(self.fed, self.fed + count, self.batch_rows):
            self.source.feed(range(first, min(first + self.batch_rows, self.fed + count)))
        self.fed += count

    def run(self, kill: Kill | None) -> bool:
        """One run of the query, to its end or to the kill. Whether it was killed."""
        self._runs += 1
        log, reached = self.directory / f"run-{self._runs}.log", self.directory / f"run-{self._runs}.reached"
        run = Run(
            reader=self.source.reader(self.batch_rows),
            target=self.target,
            is_query=self.is_query,
            checkpoint=str(self.directory / "checkpoint"),
            scratch=str(self.directory),
            spark=self.spark,
            java_home=self.java_home,
            path=[path or str(Path.cwd()) for path in sys.path],
            kill=kill,
            reached=str(reached),
        )
        with QueryProcesses(run.command(), log=log, cwd=self.directory) as processes:
            code = self._watch(processes, kill, reached)
        text = log.read_text(errors="replace")
        if code is None:
            raise QueryFailedError(f"the query did not end within {_RUN_TIMEOUT_S} s. {_tail(text)}")
        if kill is not None and (code == _KILLED or (kill.point.startswith("task.") and _WORKER_DIED in text)):
            return True
        if code != 0:
            raise QueryFailedError(f"the query ended by itself, with exit code {code}. {_tail(text)}")
        return False

    def _watch(self, processes: QueryProcesses, kill: Kill | None, reached: Path) -> int | None:
        """Wait for the end, or bring it about at the moment of the kill; returns the exit code, None if it hangs."""
        before, deadline = self._visible(), time.monotonic() + _RUN_TIMEOUT_S
        while processes.exit_code is None and time.monotonic() < deadline:
            if kill is not None and reached.exists():
                self._settle(kill, before)
                processes.kill()
            time.sleep(_POLL_S)
        return processes.exit_code

    def _settle(self, kill: Kill, before: int) -> None:
        if kill.moment is Moment.RANDOM:
            time.sleep(kill.delay_s)
        deadline = time.monotonic() + _SETTLE_S
        while kill.moment is Moment.DURING and self._visible() == before and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _visible(self) -> int:
        with contextlib.suppress(Exception):  # there is no output yet, or it is locked: read again at the end
            return len(list(self.read()))
        return 0

    def outcome(self, seed: int, seconds: float) -> Outcome:
        """Compare what was fed with what is there."""
        found = [int(row) for row in self.read()]
        wrong = {what: [v.evidence for v in not_once(range(self.fed), found) if v.what == what] for what in _WRONG}
        return Outcome(
            seed=seed,
            given=self.fed,
            found=Counter(found).total(),
            lost=tuple(row for (row,) in wrong["lost"]),
            duplicated=dict(wrong["duplicated"]),
            made_up=tuple(row for row, _ in wrong["made up"]),
            out_of_order=tuple(v.evidence[1] for v in out_of_order(found, key_of)),
            kills=tuple(self.kills),
            missed=tuple(self.missed),
            seconds=seconds,
        )


_WRONG: Final = ("lost", "duplicated", "made up")


def _tail(text: str) -> str:
    lines = text.splitlines()
    return "\n".join([f"The end of its log ({len(lines)} lines):", *lines[-_LOG_LINES:]])
