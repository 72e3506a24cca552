"""Run one query: feed it, start it, kill it, restart it, until all its input is processed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from integration.demo.chaos import BATCHES_A_KILL, Kill
from integration.services.errors import ServiceError
from integration.services.query_processes import QueryProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from integration.demo.query import QuerySpec
    from integration.demo.records import Topics

_KILLED: Final = 128 + 9
_WATCH_S: Final = 0.1
#: How often to look at the output before a kill from outside.
_AIM_S: Final = 0.02
#: Longest time without a finished batch. On an idle machine Spark starts in 5 s, and a batch takes 1 s.
_STUCK_S: Final = 240
_LOG_LINES: Final = 40
_WORKER_DIED: Final = "Python worker exited unexpectedly"


class QueryError(ServiceError):
    """The query failed or hung without a kill. The message has the end of its log."""


@dataclass
class Pipeline:
    """A query with its topics and the history of its runs.

    Attributes:
        topics: its source and output.
        spec: the query; each run gets its own fault.
        rows: number of records to process.
        logs: directory for the log of each run.
        on_progress: called with the number of processed records.
        on_kill: called after each kill, with its step.
        steps: the steps of all kills so far.
        seconds: duration of all runs.
    """

    topics: Topics
    spec: QuerySpec
    rows: int
    logs: Path
    on_progress: Callable[[int], object] = lambda _: None
    on_kill: Callable[[str], object] = lambda _: None
    steps: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _fed: int = 0
    _runs: int = 0

    def run(self, kills: Sequence[Kill]) -> None:
        """Process all rows, with these kills on the way.

        Each run gets only a share of the input, so that every kill hits work in progress.

        Raises:
            ServiceError: the query failed, or it finished before all kills happened.
        """
        began = time.monotonic()
        waiting = list(kills)
        while waiting:
            share = (self.rows - self._fed) // (len(waiting) + 1)
            if not share:
                raise ServiceError(
                    f"The query finished before {len(waiting)} of {len(kills)} kills could happen. Use more --rows."
                )
            self._feed(share)
            step = self._run(_fitted(waiting[0], share, self.spec.batch_rows))
            if step is None:
                # The run finished first; it may never pass that crash point. Kill from outside instead, and earlier.
                waiting[0] = Kill(point=None, progress=waiting[0].progress / 2)
                continue
            waiting.pop(0)
            self.steps.append(step)
            self.on_kill(step)
        self._feed(self.rows - self._fed)
        self._run(None)
        self.seconds = time.monotonic() - began

    def _feed(self, count: int) -> None:
        self.topics.feed(self._fed, self._fed + count)
        self._fed += count

    def _run(self, kill: Kill | None) -> str | None:
        """Run the query until it ends; return the step at which it was killed, None if it processed everything."""
        self._runs += 1
        log = self.logs / f"run-{self._runs}.log"
        spec = replace(self.spec, fault=kill.fault if kill else "")
        with QueryProcesses(spec.command(), log=log, cwd=Path(spec.scratch)) as processes:
            code, step = self._watch(processes, kill, log)
        self.on_progress(self._processed())
        if code == 0:
            return None
        if kill is not None and code == _KILLED:
            return step or kill.step
        if kill is not None and kill.hits_worker and _WORKER_DIED in log.read_text(errors="replace"):
            return kill.step
        raise QueryError(f"The query failed with exit code {code}. {_tail(log)}")

    def _watch(self, processes: QueryProcesses, kill: Kill | None, log: Path) -> tuple[int, str]:
        """Wait until the driver ends, or kill it; return its exit code, and the step if killed here."""
        before = self._written()
        processed, moved = -1, time.monotonic()
        while (code := processes.exit_code) is None:
            now = self._processed()
            if now > processed:
                processed, moved = now, time.monotonic()
                self.on_progress(processed)
            if time.monotonic() - moved > _STUCK_S:
                raise QueryError(f"The query has not finished a batch for {_STUCK_S} s. {_tail(log)}")
            if kill is None or kill.point is not None:
                time.sleep(_WATCH_S)
                continue
            written = self._written() - before
            if written >= kill.after:
                processes.kill()
                return processes.exit_code or 0, f"{kill.step}@{written}"
            time.sleep(_AIM_S)
        return code, ""

    def _written(self) -> int:
        return sum(self.topics.ends(self.topics.output).values())

    def _processed(self) -> int:
        """Return the number of source records in batches that Spark has marked as finished."""
        checkpoint = Path(self.spec.checkpoint)
        done = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdecimal()]
        if not done:
            return 0
        offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
        return sum(json.loads(offsets)[self.topics.source].values())


def _fitted(kill: Kill, share: int, batch_rows: int) -> Kill:
    """Return the kill, moved so that a run with ``share`` new records reaches it."""
    batches = max(1, share // batch_rows)
    within = min(share, BATCHES_A_KILL * batch_rows)
    return replace(kill, passage=min(kill.passage, batches), after=max(1, int(kill.progress * within)))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([f"The end of its log ({len(lines)} lines):", *lines[-_LOG_LINES:]])
