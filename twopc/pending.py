"""A checkpoint in progress, and its listeners. Nothing here decides anything, and no error here stops a query."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from typing import TYPE_CHECKING, Final

from twopc.errors import CheckpointExpiredError, TwoPhaseCommitError
from twopc.progress import COMPLETED, DECLINED, EXPIRED, FAILED, Acknowledgement, Cause, Checkpoint, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.batch import Batch
    from twopc.participants import Handles
    from twopc.progress import StateSize
    from twopc.records import TaskReport

logger = logging.getLogger(__name__)

#: Bounds of one record, for a batch of any size.
_SLOWEST: Final = 5
_ATTEMPTS: Final = 5
_MESSAGE: Final = 4_000
_TRIGGERED: Final = " was triggered at "


class Pending:
    """A checkpoint in progress.

    The coordinator and the engine record here what happens; none of it is written to a store meanwhile.

    Attributes:
        failed_before: see :class:`Checkpoint`.
        triggered_ms: since 1970 UTC.
        phase: the current phase.
        began: when it began, by the monotonic clock.
        limit_ms: how long preparing may take; None: without a limit.
        limited_by: the settings that change it.
        ends_at: when the limit is reached, by the monotonic clock.
        planned, state: see :class:`Checkpoint`.
        transactions_live_ms: how long the sinks' transactions may be open until they must be decided; None: forever.
        attempt_began: when its tasks, and so its transactions, began.
        is_declined: whether a task has voted no in this attempt.
        take_orphans_ended: counts what sweeps have ended since the checkpoint before; asked at the end.
    """

    def __init__(
        self,
        batch_id: int = -1,
        query_id: str = "",
        run_id: str = "",
        last_ended: float | None = None,
        failed_before: int = 0,
    ) -> None:
        self.batch_id, self.query_id, self.run_id, self.failed_before = batch_id, query_id, run_id, failed_before
        self.triggered_ms = int(time.time() * 1000)
        self.began = time.monotonic()
        self.phase = ""
        self.limit_ms: float | None = None
        self.limited_by = ""
        self.ends_at = math.inf
        self.planned: int | None = None
        self.state: tuple[StateSize, ...] = ()
        self.is_declined = False
        self.transactions_live_ms: float | None = None
        self.attempt_began = self.began
        self.take_orphans_ended: Callable[[], int] = int
        self._pause_ms = None if last_ended is None else (self.began - last_ended) * 1000
        self._entered: list[tuple[str, float]] = []
        self._steps: list[str] = []
        self._failed: list[Cause] = []
        self._acknowledged: list[Acknowledgement] = []
        self._tasks: Sequence[TaskReport] = ()
        self._handles: Handles = {}

    def enter(self, phase: str) -> None:
        """Begin another phase and end the one before."""
        self.phase = phase
        self._entered.append((phase, time.monotonic()))

    def attempting(self, transactions_live_ms: float | None) -> None:
        """Record that tasks are about to open transactions."""
        self.transactions_live_ms = transactions_live_ms
        self._acknowledged, self.is_declined = [], False
        self.enter("prepare")
        self.attempt_began = self._entered[-1][1]

    def acknowledged(self, votes: Sequence[Acknowledgement | None]) -> None:
        """Record that tasks have voted yes."""
        self._acknowledged += [vote for vote in votes if vote is not None]

    def prepared(self, step: str, tasks: Sequence[TaskReport], handles: Handles) -> None:
        """Record that every task has voted yes and every handle is confirmed."""
        self._steps.append(step)
        self._tasks, self._handles = tasks, handles

    @property
    def transactions(self) -> list[str]:
        """The names of the transactions that were prepared last."""
        return [handle.transaction for handle in self._handles.values()]

    def attempt_failed(self, error: BaseException) -> None:
        """Record that the attempt failed and will be retried."""
        self._failed = [*self._failed, self._cause(error)][-_ATTEMPTS:]

    def ended(self, error: BaseException | None) -> Checkpoint:
        """The facts of the failure."""
        end, tasks = time.monotonic(), self._tasks
        votes = sorted(self._acknowledged, key=_took, reverse=True)
        direct = [task.is_direct for task in tasks]
        return Checkpoint(
            batch_id=self.batch_id,
            query_id=self.query_id,
            run_id=self.run_id,
            status=COMPLETED if error is None else FAILED,
            triggered_ms=self.triggered_ms,
            took_ms=_rounded((end - self.began) * 1000),
            pause_ms=self._pause_ms,
            failed_before=self.failed_before,
            way="" if not direct else "direct" if all(direct) else "both" if any(direct) else "tasks",
            steps=tuple(self._steps),
            phases=self._durations(end),
            tasks=len(tasks) or len(votes),
            transactions=sum([len(task.handles) for task in tasks]),
            rows=sum([task.rows for task in tasks] or [vote.rows for vote in votes]),
            size_bytes=sum([vote.size_bytes for vote in votes]),
            planned=self.planned,
            orphans_ended=self.take_orphans_ended(),
            limit_ms=self.limit_ms,
            limited_by=self.limited_by,
            median_ms=votes[len(votes) // 2].took_ms if votes else 0.0,
            slowest=tuple(votes[:_SLOWEST]),
            retried=tuple([vote for vote in votes if vote.attempt][:_SLOWEST]),
            state=self.state,
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
            reason=EXPIRED if is_expired else DECLINED if self.is_declined else FAILED,
            phase=self.phase,
            error=type(error).__name__,
            message=text,
            late=len(error.late) if isinstance(error, CheckpointExpiredError) else 0,
        )


class Listener:
    """Watches checkpoints.

    Called in the query's own thread, so it must be quick. Its errors are logged once and change nothing.
    """

    def triggered(self, pending: Pending) -> None:
        """Handle the start of a checkpoint. ``pending`` changes until the checkpoint has ended; only read it."""

    def ended(self, checkpoint: Checkpoint) -> None:
        """Handle the end of a checkpoint, completed or failed. The protocol has done everything that it does for it."""

    def close(self) -> None:
        """Handle the end of the query, or a failure after which it begins with recovery."""


class Listeners:
    """Notifies several listeners, and keeps their errors away from the query."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)
        self._broken: set[int] = set()
        self._last_ended: float | None = None

    @property
    def idle_ms(self) -> float:
        """How long ago the last checkpoint ended; infinite before there was one."""
        return math.inf if self._last_ended is None else (time.monotonic() - self._last_ended) * 1000

    @contextlib.contextmanager
    def watching(self, batch: Batch, run_id: str, *, failed_before: int = 0) -> Iterator[Pending]:
        """Trigger a checkpoint that ends with the body. If the body raises, add the facts of the checkpoint to the error."""
        pending = Pending(batch.batch_id, batch.query_id, run_id, self._last_ended, failed_before)
        for listener in self._listeners:
            self._tell(listener, listener.triggered, pending)
        try:
            yield pending
        except BaseException as error:
            self._tell(self, self._end, pending, error)
            raise
        self._tell(self, self._end, pending, None)

    def close(self) -> None:
        """Notify the listeners that the query has ended, or begins again with recovery."""
        for listener in self._listeners:
            self._tell(listener, listener.close)

    def _end(self, pending: Pending, error: BaseException | None) -> None:
        self._last_ended = time.monotonic()
        checkpoint = pending.ended(error)
        for listener in self._listeners:
            self._tell(listener, listener.ended, checkpoint)
        if error is not None:
            explain(error, checkpoint)

    def _tell(self, one: object, tell: Callable[..., None], *facts: object) -> None:
        """Call a listener. No error of it stops the query: the checkpoint may already be committed."""
        try:
            tell(*facts)
        except Exception as error:  # noqa: BLE001 - see above
            self._note(one, error)

    def _note(self, listener: object, error: Exception) -> None:
        if id(listener) not in self._broken:
            self._broken.add(id(listener))
            logger.warning(
                "%s failed; the query continues, and this warning appears only once: %r", type(listener).__name__, error
            )


def explain(error: BaseException, checkpoint: Checkpoint) -> None:
    """Add the facts of a failed checkpoint to one of our errors; to any other error, as a note (Python 3.11 and later)."""
    facts = describe(checkpoint)
    if isinstance(error, TwoPhaseCommitError) and error.args:
        if _TRIGGERED in str(error.args[0]):
            return  # the same error once more: a run in doubt raises it for every batch
        error.args = (f"{error.args[0]}. {facts}", *error.args[1:])
    elif sys.version_info >= (3, 11):
        error.add_note(facts)


def _took(vote: Acknowledgement) -> float:
    return vote.took_ms


def _rounded(ms: float) -> float:
    return round(ms, 3)
