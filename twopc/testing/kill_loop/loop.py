"""Feed, start, kill and restart a query until it has processed all input, then count its output."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twopc.integration.services import ServiceError
from twopc.integration.services.java import java_home
from twopc.testing.kill_loop.connect import ConnectSessions, require_connect
from twopc.testing.kill_loop.kills import Kill, Moment
from twopc.testing.kill_loop.outcome import judge
from twopc.testing.kill_loop.records import KEYS
from twopc.testing.kill_loop.run import Run, pickled, settings
from twopc.testing.kill_loop.sessions import ClassicSessions, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from twopc.testing.kill_loop.outcome import Outcome
    from twopc.testing.kill_loop.records import Source
    from twopc.testing.kill_loop.sessions import RunningQuery, Sessions

_KILLED: Final = 128 + 9
_POLL_S: Final = 0.02
#: The maximum time without a finished batch. Spark starts in 5 s on a quiet machine, and a batch takes a second.
_STUCK_S: Final = 300
#: How long to wait for the other tasks of a held batch to write their rows.
_SETTLE_S: Final = 5.0
_WORKER_DIED: Final = "Python worker exited unexpectedly"


class QueryFailedError(ServiceError):
    """The query under test ended or hung even though it was not killed. The message quotes the end of the query's log."""


@dataclass(kw_only=True)
class KillLoop:
    """A query that receives input, and is killed and restarted until it has processed all of the input.

    See :func:`kill_loop`.

    Attributes:
        read, foreach_batch, query, directory, rows, spark: see :func:`kill_loop`.
        source: the source that the query reads.
        batch_rows: the number of rows in a batch.
        keys: the number of distinct keys in the source's records.
        checkpoint: the query's checkpoint, by default in ``directory``. Loops with the same checkpoint run the same
            query.
        connect: whether the query runs under Spark Connect.
        java_home: the directory of the Java installation to use.
        written: returns how much the output has grown, visible or not; by default the loop counts the records from ``read``.
        insists: whether a kill whose moment never came is replaced by a kill from outside, at an earlier moment each
            time.
        on_batch: called with the id of the batch that Spark has just finished.
        on_kill: called after each kill with its description.
        kills: the kills that happened.
        missed: the kills whose moment never came.
        seconds: how long all runs took together, in seconds.
    """

    read: Callable[[], Iterable[int | str | bytes]]
    foreach_batch: str | Callable[..., None] | None = None
    query: str | Callable[..., Any] | None = None
    source: Source
    directory: Path
    rows: int
    batch_rows: int
    keys: int = KEYS
    checkpoint: Path | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    connect: bool = False
    java_home: str = field(default_factory=lambda: str(java_home()))
    written: Callable[[], int] | None = None
    insists: bool = False
    on_batch: Callable[[int], object] = lambda _: None
    on_kill: Callable[[str], object] = lambda _: None
    kills: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _fed: int = 0
    _runs: int = 0
    _target: str = ""
    _sessions: Sessions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        function = self.foreach_batch if self.query is None else self.query
        if function is None or (self.foreach_batch is not None and self.query is not None):
            raise ValueError("kill_loop() needs exactly one of foreach_batch=… and query=…")
        if self.connect:
            require_connect()
        self._sessions = (ConnectSessions if self.connect else ClassicSessions)(self.directory, [])
        self.directory.mkdir(parents=True, exist_ok=True)
        self._target = function if isinstance(function, str) else pickled(function, self.directory)

    def run(self, kills: Sequence[Kill], *, ends: bool = True) -> None:
        """Process all rows, and carry out these kills along the way. Each run with a kill receives its share of rows.

        Args:
            kills: the kills, in their order.
            ends: whether to run the query to its end after the kills. If not, the query stays as the last kill left it.

        Raises:
            QueryFailedError: the query stopped or hung although it was not killed, or it processed all rows before
                every kill had happened.
        """
        began = time.monotonic()
        try:
            self._run(kills, ends=ends)
        finally:
            self._sessions.close()
        self.seconds = time.monotonic() - began

    def _run(self, kills: Sequence[Kill], *, ends: bool) -> None:
        waiting = deque(kills)
        while waiting:
            share = (self.rows - self._fed) // (len(waiting) + 1)
            if not share:
                raise QueryFailedError(
                    f"The query finished before {len(waiting)} of {len(kills)} kills could happen. Use more rows."
                )
            self._feed(share)
            kill = waiting.popleft().fitted(share, self.batch_rows)
            if step := self._run_once(kill):
                self.kills.append(step)
                self.on_kill(step)
            elif self.insists:
                waiting.appendleft(Kill(moment=Moment.OUTSIDE, victim=kill.victim, progress=kill.progress / 2))
            else:
                self.missed.append(str(kill))
        if ends:
            self._feed(self.rows - self._fed)
            self._run_once(None)

    def outcome(self, seed: int, found: Iterable[int | str | bytes] | None = None) -> Outcome:
        """Compare the input records with the output records.

        Args:
            seed: the seed from which the kills were drawn.
            found: the records from another output of the same query; None to use the records from ``read``.
        """
        return judge(
            self._fed,
            map(int, self.read() if found is None else found),
            keys=self.keys,
            seed=seed,
            kills=self.kills,
            missed=self.missed,
            zombies=self._sessions.zombies,
            seconds=self.seconds,
        )

    def _feed(self, count: int) -> None:
        """Add a number of records to the source, a batch at a time."""
        for first in range(self._fed, self._fed + count, self.batch_rows):
            self.source.feed(range(first, min(first + self.batch_rows, self._fed + count)))
        self._fed += count

    def _run_once(self, kill: Kill | None) -> str:
        """Run the query to its end or to the kill; return a description of the kill, or "" if the query was not killed."""
        self._runs += 1
        log, reached = self.directory / f"run-{self._runs}.log", self.directory / f"run-{self._runs}.reached"
        before = self._finished_batch()
        run = Run(
            reader=self.source.reader(self.batch_rows),
            target=self._target,
            is_query=self.query is not None,
            checkpoint=str(self._checkpoint),
            scratch=str(self.directory),
            spark={**settings(self.directory), **self.spark},
            java_home=self.java_home,
            path=[path or str(Path.cwd()) for path in sys.path],
            kill=kill,
            reached=str(reached),
        )
        with self._sessions.started(run, log) as query:
            step = self._watch(query, kill, log, reached)
            code = query.exit_code
        if code == 0:
            return self._without_record(before) if kill is not None and kill.moment is Moment.AFTER else ""
        if step or (kill is not None and (code == _KILLED or (kill.is_in_task and _WORKER_DIED in _text(log)))):
            return step or str(kill)
        raise QueryFailedError(f"The query failed with exit code {code}. {tail(log)}")

    def _watch(self, query: RunningQuery, kill: Kill | None, log: Path, reached: Path) -> str:
        """Wait until the query stops, or kill it when the moment comes. Return a description of the kill, or ""."""
        before, first, step = self._written(), self._finished_batch(), ""
        finished, deadline = -1, time.monotonic() + _STUCK_S
        while True:
            is_over = query.exit_code is not None  # before the checkpoint is read, so that no batch is missed
            if (latest := self._finished_batch()) > finished:
                finished, deadline = latest, time.monotonic() + _STUCK_S
                self.on_batch(finished)
                if finished > first:
                    self._sessions.batch_finished()
            if is_over:
                return step
            if time.monotonic() > deadline:
                raise QueryFailedError(f"The query has not finished a batch for {_STUCK_S} s. {tail(log)}")
            if kill is not None and not step and (due := self._due(kill, before, reached)):
                step = str(replace(due, victim=query.kill(due.victim)))
            time.sleep(_POLL_S)

    def _due(self, kill: Kill, before: int, reached: Path) -> Kill | None:
        """Return the kill if its moment has come, otherwise None."""
        if kill.moment is Moment.OUTSIDE:
            grown = self._written() - before
            return replace(kill, records=grown) if grown >= kill.records else None
        if not reached.exists():
            return None
        time.sleep(kill.delay_s if kill.moment is Moment.RANDOM else 0)
        deadline = time.monotonic() + _SETTLE_S
        while kill.moment is Moment.DURING and self._written() == before and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return kill

    def _without_record(self, before: int) -> str:
        """Delete Spark's record of the run's last batch. Return a description of this kill.

        If there is no such batch, or if it has no rows, delete nothing and return "", because a repetition would prove nothing.

        The loop can hold only a ``foreachBatch`` function between the end of its work and Spark's record. Any other
        query runs to completion. Without the record, the checkpoint looks as if the query had been killed at that moment, so
        Spark repeats the batch.
        """
        last = self._finished_batch()
        if last == before or self._sources(last) == self._sources(last - 1):
            return ""
        commits = self._checkpoint / "commits"
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        return f"{Moment.AFTER.value} (commits/{last} deleted)"

    def _sources(self, batch: int) -> list[str]:
        """Return the batch's source offsets as text (``OffsetSeqLog``: a version, the metadata, and a line for each source)."""
        path = self._checkpoint / "offsets" / f"{batch}"
        return path.read_text().splitlines()[2:] if path.exists() else []

    @property
    def _checkpoint(self) -> Path:
        return self.checkpoint or self.directory / "checkpoint"

    def _finished_batch(self) -> int:
        """Return the last batch that Spark has recorded as done; -1 if there is none."""
        commits = self._checkpoint.glob("commits/*")
        return max((int(path.name) for path in commits if path.name.isdecimal()), default=-1)

    def _written(self) -> int:
        if self.written is not None:
            return self.written()
        with contextlib.suppress(Exception):  # the output may not exist yet, or be locked; a later call reads it again
            return len(list(self.read()))
        return 0


def _text(log: Path) -> str:
    return log.read_text(errors="replace")
