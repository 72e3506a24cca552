"""Decide when to trigger a batch's checkpoint, and when to trigger it again.

Flink counts *continuous* failures. A checkpoint counts as failed if it was declined, if it expired, or if an I/O error
ended it. A completed checkpoint resets the count to 0. A job fails when the count exceeds
``tolerable-failed-checkpoints``. A failed task does not count, because the restart strategy handles it
(``CheckpointFailureManager.checkFailureCounter``, flink-runtime). After a failed checkpoint, Flink continues with newer
rows. Spark hands over each batch only once, so the toolkit writes the same batch again.

Flink's ``min-pause`` counts from the end of one checkpoint to the trigger of the next checkpoint
(``CheckpointRequestDecider.nextTriggerDelayMillis``). The toolkit's pause counts in the same way. After a failed
checkpoint, the pause serves as the backoff.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

from twopc.errors import CheckpointExpiredError, RetriableError, release

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.batch import Batch
    from twopc.checkpoint_config import CheckpointConfig
    from twopc.listeners import Listeners
    from twopc.pending import Pending

logger = logging.getLogger(__name__)

#: Failures that another checkpoint of the same batch may avoid. All our other errors have a permanent cause.
PASSING: Final = (RetriableError, CheckpointExpiredError)


class Checkpoints:
    """Triggers the checkpoints of one run. Each checkpoint has its own record.

    Args:
        config: the number of checkpoints that may fail, and the pause between them.
        listeners: the listeners to notify of each checkpoint.
        run_id: the id of the query's run.
        wait_ms: waits for this many milliseconds, and raises if the query is stopped in the meantime.
    """

    def __init__(
        self, config: CheckpointConfig, listeners: Listeners, run_id: str, wait_ms: Callable[[int], None]
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._run_id = run_id
        self._wait_ms = wait_ms
        self._last_ended: float | None = None

    def complete(
        self, batch: Batch, checkpoint: Callable[[Pending, int], None], may_repeat: Callable[[Exception], bool]
    ) -> None:
        """Trigger checkpoints of the batch until one is completed.

        Args:
            batch: the batch.
            checkpoint: makes the batch visible or raises an error. The function's second argument is the number of the
                batch's checkpoints that have already failed.
            may_repeat: returns whether this process may write the batch again after an error. The process may do so only if
                the batch is certainly undecided (:meth:`twopc.coordinator.Coordinator.is_undecided`). The batch's open
                transactions have ended before this call.
        """
        allowed = self._config.tolerable_failures
        for failed in range(allowed + 1):
            self._pause()
            try:
                self._trigger(batch, checkpoint, failed)
            except Exception as error:
                if failed == allowed or not may_repeat(error):
                    raise
                text = (
                    "checkpoint %d failed (consecutive failures: %d, tolerated: %d). The batch will be written again. "
                    "Cause: %s"
                )
                logger.warning(text, batch.batch_id, failed + 1, allowed, error)
                release(error)
            else:
                return

    def close(self) -> None:
        """Notify the listeners that the query has stopped, or will restart and recover."""
        self._listeners.close()

    def _pause(self) -> None:
        if self._last_ended is None:
            return
        idle_ms = (time.monotonic() - self._last_ended) * 1000
        if (left_ms := self._config.min_pause_ms - idle_ms) > 0:
            self._wait_ms(math.ceil(left_ms))

    def _trigger(self, batch: Batch, checkpoint: Callable[[Pending, int], None], failed: int) -> None:
        with self._listeners.watching(
            batch, self._run_id, last_ended=self._last_ended, failed_before=failed
        ) as pending:
            try:
                checkpoint(pending, failed)
            finally:
                self._last_ended = time.monotonic()
