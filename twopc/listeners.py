"""Notify listeners about a query's checkpoints. A listener receives immutable events and cannot change a checkpoint."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

from twopc.errors import TwoPhaseCommitError
from twopc.events import Triggered
from twopc.pending import Pending
from twopc.progress import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.batch import Batch
    from twopc.events import Phase
    from twopc.progress import Checkpoint

logger = logging.getLogger(__name__)


class Listener:
    """Watches checkpoints.

    A listener is called on the query's thread, so it must be quick. If a listener raises errors, the first one is
    logged, and the query continues.
    """

    def triggered(self, checkpoint: Triggered) -> None:
        """Handle the start of a checkpoint."""

    def entered(self, phase: Phase) -> None:
        """Handle the beginning of a phase, which ends the previous phase of the checkpoint."""

    def ended(self, checkpoint: Checkpoint) -> None:
        """Handle a completed or failed checkpoint. The protocol has finished its work on that checkpoint."""

    def close(self) -> None:
        """Handle the end of the query, or a failure after which the query restarts and recovers."""


class Listeners:
    """Notifies several listeners. Their errors do not affect the query."""

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)
        self._broken: set[int] = set()

    @contextlib.contextmanager
    def watching(
        self, batch: Batch, run_id: str, *, last_ended: float | None = None, failed_before: int = 0
    ) -> Iterator[Pending]:
        """Trigger a checkpoint that ends when the body ends.

        If the body raises, add the checkpoint's facts to the error.

        Args:
            batch: the batch.
            run_id: the id of the query's run.
            last_ended: see :class:`~twopc.pending.Pending`.
            failed_before: the number of the batch's checkpoints that have already failed.
        """
        pending = Pending(
            batch.batch_id,
            query_id=batch.query_id,
            run_id=run_id,
            last_ended=last_ended,
            failed_before=failed_before,
            notify=self._entered,
        )
        trigger = Triggered(batch.batch_id, batch.query_id, run_id, pending.triggered_ms)
        for listener in self._listeners:
            self._tell(listener, listener.triggered, trigger)
        try:
            yield pending
        except BaseException as error:
            self._tell(self, self._end, pending, error)
            raise
        self._tell(self, self._end, pending, None)

    def close(self) -> None:
        """Notify the listeners that the query has stopped or will start again with recovery."""
        for listener in self._listeners:
            self._tell(listener, listener.close)

    def _entered(self, phase: Phase) -> None:
        for listener in self._listeners:
            self._tell(listener, listener.entered, phase)

    def _end(self, pending: Pending, error: BaseException | None) -> None:
        checkpoint = pending.ended(error)
        for listener in self._listeners:
            self._tell(listener, listener.ended, checkpoint)
        if error is not None:
            explain(error, checkpoint)

    def _tell(self, one: object, tell: Callable[..., None], *facts: object) -> None:
        """Call a listener. A listener's error never stops the query, because the checkpoint may already be committed."""
        try:
            tell(*facts)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - see above
            self._note(one, error)

    def _note(self, listener: object, error: Exception | SystemExit) -> None:
        if id(listener) not in self._broken:
            self._broken.add(id(listener))
            logger.warning(
                "%s failed. The query continues. This warning appears only once. Cause: %r",
                type(listener).__name__,
                error,
            )


def explain(error: BaseException, checkpoint: Checkpoint) -> None:
    """Add a failed checkpoint's facts to the error.

    Our own errors include the facts in the message. For any other error, the facts are added as a note (Python 3.11 and later).
    """
    facts = describe(checkpoint)
    if isinstance(error, TwoPhaseCommitError) and error.args:
        if error.checkpoint is None:  # a run whose decision is in doubt raises the same error for every batch
            error.checkpoint = checkpoint
            error.args = (f"{error.args[0]}. {facts}", *error.args[1:])
    elif sys.version_info >= (3, 11):
        error.add_note(facts)
