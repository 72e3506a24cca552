"""Log checkpoints as records with fields: ``exactly_once(…, listeners=[CheckpointLog()])``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from twopc.counted import counted
from twopc.listeners import Listener
from twopc.progress import describe, seconds

if TYPE_CHECKING:
    from twopc.events import Phase, Triggered
    from twopc.progress import Checkpoint

logger: Final = logging.getLogger("twopc.checkpoints")


class CheckpointLog(Listener):
    """Logs one record for each checkpoint that has ended.

    The level is INFO for a completed checkpoint, and ERROR for a failed checkpoint. The record's ``extra`` contains
    ``batch_id``, ``query_id``, ``run_id``, ``outcome``, ``took_ms``, ``rows`` and ``transactions``.
    """

    def __init__(self) -> None:
        self._transactions: tuple[str, ...] = ()

    def triggered(self, checkpoint: Triggered) -> None:
        """See :class:`twopc.Listener`."""
        del checkpoint
        self._transactions = ()

    def entered(self, phase: Phase) -> None:
        """See :class:`twopc.Listener`."""
        self._transactions = phase.transactions

    def ended(self, checkpoint: Checkpoint) -> None:
        """See :class:`twopc.Listener`."""
        level = logging.INFO if checkpoint.cause is None else logging.ERROR
        if not logger.isEnabledFor(level):
            return
        took = seconds(checkpoint.took_ms)
        text = f"checkpoint {checkpoint.batch_id} completed in {took}, {counted(checkpoint.rows, 'row')}"
        if checkpoint.cause is not None:
            text = f"{describe(checkpoint)}: {checkpoint.cause.error}: {checkpoint.cause.message}"
        fields = ("batch_id", "query_id", "run_id", "outcome", "took_ms", "rows")
        extra = {name: getattr(checkpoint, name) for name in fields}
        extra["transactions"] = list(self._transactions)
        logger.log(level, "%s", text, extra=extra)
