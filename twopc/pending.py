"""Record the events of a checkpoint in progress.

The recorder makes no decisions, and no other code reads it before the checkpoint has ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from twopc.errors import CheckpointExpiredError
from twopc.events import Phase
from twopc.progress import COMPLETED, DECLINED, EXPIRED, FAILED, Acknowledgement, Cause, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.participants import Handles
    from twopc.progress import StateSize
    from twopc.records import TaskReport

#: These limits keep a record small for a batch of any size.
_SLOWEST: Final = 5
_ATTEMPTS: Final = 5
_MESSAGE: Final = 4_000


class Pending:
    """Records the events of one checkpoint; :meth:`ended` builds the checkpoint's record from them.

    The coordinator and the engine report the events. This class writes to no store.

    Args:
        batch_id, query_id, run_id, failed_before: see :class:`Checkpoint`.
        last_ended: when this run's previous checkpoint ended, on the monotonic clock; None if there was none.
        notify: called with each phase when the phase begins.

    Attributes:
        triggered_ms: the Unix time at which the checkpoint was triggered, in milliseconds.
    """

    def __init__(  # noqa: PLR0913 - the facts of a trigger
        self,
        batch_id: int = -1,
        *,
        query_id: str = "",
        run_id: str = "",
        last_ended: float | None = None,
        failed_before: int = 0,
        notify: Callable[[Phase], None] = lambda _: None,
    ) -> None:
        self._batch_id, self._query_id, self._run_id, self._failed_before = batch_id, query_id, run_id, failed_before
        self.triggered_ms = int(time.time() * 1000)
        self._began = time.monotonic()
        self._pause_ms = None if last_ended is None else (self._began - last_ended) * 1000
        self._notify = notify
        self._entered: list[tuple[str, float]] = []
        self._steps: list[str] = []
        self._failed: list[Cause] = []
        self._acknowledged: list[Acknowledgement] = []
        self._is_declined = False
        self._planned: int | None = None
        self._limit_ms: float | None = None
        self._limited_by = ""
        self._state: tuple[StateSize, ...] = ()
        self._attempt_began: float | None = None
        self._transactions_live_ms: float | None = None
        self._tasks: Sequence[TaskReport] = ()
        self._transactions: tuple[str, ...] = ()
        self._orphans_ended = 0

    def measured(self, state: tuple[StateSize, ...]) -> None:
        """Record the size of the query's state."""
        self._state = state

    def limited(self, limit_ms: float | None, limited_by: str, *, planned: int | None) -> None:
        """Record the time limit in ms for preparing (None: no limit), the settings that determine it, and the planned input."""
        self._limit_ms, self._limited_by, self._planned = limit_ms, limited_by, planned

    def enter(self, phase: str) -> None:
        """Record that a phase begins, which ends the previous phase."""
        self._entered.append((phase, time.monotonic()))
        self._notify(Phase(phase, self._attempt_began, self._transactions_live_ms, self._transactions))

    def attempting(self, transactions_live_ms: float | None) -> None:
        """Record that tasks are about to open transactions, and how long the transactions may stay open, in ms."""
        self._transactions_live_ms = transactions_live_ms
        self._acknowledged, self._is_declined = [], False
        self._attempt_began = time.monotonic()
        self.enter("prepare")

    def acknowledged(self, votes: Sequence[Acknowledgement | None]) -> None:
        """Record that tasks have voted yes."""
        self._acknowledged += [vote for vote in votes if vote is not None]

    def declined(self) -> None:
        """Record that a task has failed in this attempt."""
        self._is_declined = True

    def prepared(self, step: str, tasks: Sequence[TaskReport], handles: Handles) -> None:
        """Record that every task has voted yes and every handle is confirmed."""
        self._steps.append(step)
        self._tasks = tasks
        self._transactions = tuple([handle.transaction for handle in handles.values()])

    def swept(self, orphans: int) -> None:
        """Record that sweeps have ended this many orphans since the last call."""
        self._orphans_ended += orphans

    def attempt_failed(self, error: BaseException) -> None:
        """Record that the attempt failed and will be retried."""
        self._failed = [*self._failed, self._cause(error)][-_ATTEMPTS:]

    def ended(self, error: BaseException | None) -> Checkpoint:
        """End the checkpoint and build its record.

        ``error`` is the error that made the checkpoint fail; None if it completed.
        """
        end, tasks = time.monotonic(), self._tasks
        votes = sorted(self._acknowledged, key=_took, reverse=True)
        direct = [task.is_direct for task in tasks]
        return Checkpoint(
            batch_id=self._batch_id,
            query_id=self._query_id,
            run_id=self._run_id,
            status=COMPLETED if error is None else FAILED,
            triggered_ms=self.triggered_ms,
            took_ms=_rounded((end - self._began) * 1000),
            pause_ms=self._pause_ms,
            failed_before=self._failed_before,
            way="" if not direct else "direct" if all(direct) else "both" if any(direct) else "tasks",
            steps=tuple(self._steps),
            phases=self._durations(end),
            tasks=len(tasks) or len(votes),
            transactions=sum([len(task.handles) for task in tasks]),
            rows=sum([task.rows for task in tasks] or [vote.rows for vote in votes]),
            size_bytes=sum([vote.size_bytes for vote in votes]),
            planned=self._planned,
            orphans_ended=self._orphans_ended,
            limit_ms=self._limit_ms,
            limited_by=self._limited_by,
            median_ms=votes[len(votes) // 2].took_ms if votes else 0.0,
            slowest=tuple(votes[:_SLOWEST]),
            retried=tuple([vote for vote in votes if vote.attempt][:_SLOWEST]),
            state=self._state,
            failed_attempts=tuple(self._failed),
            cause=None if error is None else self._cause(error),
        )

    def _durations(self, end: float) -> dict[str, float]:
        found: dict[str, float] = {}
        until_next = [*[at for _, at in self._entered[1:]], end]
        for (phase, at), until in zip(self._entered, until_next, strict=False):
            found[phase] = _rounded(found.get(phase, 0.0) + (until - at) * 1000)
        return found

    def _cause(self, error: BaseException) -> Cause:
        is_expired = isinstance(error, CheckpointExpiredError)
        text = str(error)
        if len(text) > _MESSAGE:
            text = f"{text[: _MESSAGE * 3 // 4]} … {text[-_MESSAGE // 4 :]}"
        return Cause(
            reason=EXPIRED if is_expired else DECLINED if self._is_declined else FAILED,
            phase=self._entered[-1][0] if self._entered else "",
            error=type(error).__name__,
            message=text,
            late=len(error.late) if isinstance(error, CheckpointExpiredError) else 0,
        )


def _took(vote: Acknowledgement) -> float:
    return vote.took_ms


def _rounded(ms: float) -> float:
    return round(ms, 3)
