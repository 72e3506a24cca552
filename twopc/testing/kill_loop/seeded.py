"""Plan the kills of a query from a seed, run them, and count the query's output."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

from twopc.counted import counted
from twopc.testing.kill_loop.kills import ALWAYS_SHOWS, BATCHES_A_KILL, OF_CONNECT, aimed, planned
from twopc.testing.kill_loop.loop import KillLoop
from twopc.testing.kill_loop.records import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from twopc.testing.kill_loop.kills import Moment, Victim
    from twopc.testing.kill_loop.outcome import Outcome
    from twopc.testing.kill_loop.records import Source


def kill_loop(  # noqa: PLR0913 - all but the first two are passed by name, and most of them have defaults
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
    connect: bool = False,
    victims: Sequence[Victim] = (),
) -> Outcome:
    """Run a query until it has processed all of its input, killing it repeatedly along the way. Count its output records.

    Every run is a separate process with real Spark (``local[2]``). Each run receives only its share of the input, so
    that every kill interrupts work in progress. A kill terminates the driver, its JVM and its Python workers together.

    Under Spark Connect, every run has a client and a server on 127.0.0.1. The kills hit four victims in turn. The
    first victim is the process that calls the function. The second victim is the server; the process that calls the
    function survives and wakes up during the next run. The third victim is the client. The fourth kill hits all processes
    together.

    Args:
        read: returns the numbers that the output contains now (the ``number`` or ``value`` column), including
            duplicates. The loop also calls ``read`` before the first run and while the query runs, when the output may
            not exist yet, or may be locked. Before the first run, the output must be empty.
        directory: a new or empty directory for the input, the checkpoint and the logs.
        foreach_batch: the function that ``foreachBatch`` calls, ``function(frame, batch_id)``; a callable or
            ``"module:name"``. A callable is pickled.
        query: instead of ``foreach_batch``, a function ``function(frame, checkpoint)`` that returns the
            ``DataStreamWriter``. The loop adds the checkpoint and the trigger, and starts the query.
        source: the source that the query reads; JSON files by default. See :mod:`twopc.testing.kill_loop.records`.
        rows: the total number of input records.
        kills: the number of kills.
        seed: the seed from which the kills are drawn; a random seed by default.
        moments: the moments of the first kills, before the random ones.
        crash_points: the crash points at which to kill first, for queries that use this toolkit; see
            :data:`twopc.crash_points.POINTS`.
        spark: further settings of the Spark session.
        connect: run the query under Spark Connect, which requires Spark 4.0 or later and ``pip install
            'spark-twopc[connect]'``.
        victims: with ``connect``, the processes that the kills terminate in turn. The default is all four values of
            :class:`Victim`, with ALL last. At a crash point in a task, the task's Python worker always kills itself,
            and the query fails.

    Raises:
        QueryFailedError: the query stopped or hung although it was not killed.
        ServiceError: Spark Connect is not available with this PySpark, or its server did not start.
        ValueError: ``foreach_batch`` and ``query`` were both given or both missing, there are too few rows,
            ``victims`` was given without ``connect``, ``directory`` is not empty, or the output already contains
            records.
    """
    if victims and not connect:
        raise ValueError(
            "kill_loop(victims=…) needs connect=True, because a kill of a classic session ends all of its processes"
        )
    if rows < BATCHES_A_KILL * (kills + 1) * 2:
        raise ValueError(
            f"kill_loop(rows={rows}, kills={kills}): this number of kills needs at least "
            f"{BATCHES_A_KILL * (kills + 1) * 2} rows"
        )
    _require_fresh(read, directory)
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    loop = KillLoop(
        read=read,
        foreach_batch=foreach_batch,
        query=query,
        source=source or Files(directory / "input"),
        directory=directory,
        rows=rows,
        batch_rows=rows // (kills + 1) // BATCHES_A_KILL,
        spark=spark or {},
        connect=connect,
    )
    print(f"kill_loop: seed {seed}, logs in {directory}", flush=True)  # noqa: T201 - pytest shows it if the test fails
    plan = planned(seed, kills, moments=moments, crash_points=crash_points)
    loop.run(aimed(plan, victims or OF_CONNECT) if connect else plan)
    return loop.outcome(seed)


def _require_fresh(read: Callable[[], Iterable[int | str | bytes]], directory: Path) -> None:
    """Reject the leftovers of an earlier run. Old records have the same numbers as new ones, and would hide a lost record."""
    if directory.is_dir() and any(directory.iterdir()):
        raise ValueError(
            f"kill_loop(): the directory {directory} is not empty. The query would continue from an earlier run's checkpoint, "
            "and would skip input. Pass a new directory to each call"
        )
    found = 0
    with contextlib.suppress(Exception):  # the output may not exist yet
        found = len(list(read()))
    if found:
        raise ValueError(
            f"kill_loop(): the output already contains {counted(found, 'record')} before the first run of the query. "
            "An earlier run may have written them. Every run writes the same numbers, so the old records would hide the "
            "loss of new ones. Let the query write to a new output in each test, for example in pytest's tmp_path, or "
            "empty the output before you call kill_loop()"
        )
