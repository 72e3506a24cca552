"""On the executor, write a task's rows to an immutable slice. No reader sees the slice."""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from twopc.sinks.staged.slices import StagedHandleT, entry_of
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.attempt import TaskAttempt
    from twopc.sinks.staged.client import StoreClient

logger = logging.getLogger(__name__)


class StagedWriter(SinkWriter[StagedHandleT]):
    """See :class:`SinkWriter`. Rows have the DataFrame's columns, and the mapping picks the columns that it needs.

    ``begin_transaction`` adds the slice to the sink's list of slices, because the sweep finds a slice only by its entry.
    ``write`` stages rows immediately, so that only one Arrow batch is in memory. When ``pre_commit`` builds the handle, the
    store has acknowledged every chunk.
    """

    def __init__(self, task: TaskAttempt, sink: str, client: StoreClient[Any]) -> None:
        self._task = task
        self._sink = sink
        self._client = client
        self._uuid = uuid.uuid4().hex
        self._entry = entry_of(task.driver_epoch, self._uuid)

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        failed = [answer for answer in self._remove() if isinstance(answer, Exception)]
        if failed:
            logger.warning(
                "sink %r: slice %s could not be removed. No data is at risk: the driver's sweep will remove the slice. "
                "Cause: %s",
                self._sink,
                self._entry,
                failed[0],
            )

    def close(self) -> None:
        """See :class:`SinkWriter`."""
        super().close()
        self._client.close()

    def _execute(self, calls: Sequence[Any], what: str) -> list[Any]:
        """Execute calls, and return their responses. An error makes the task fail."""
        answers = self._client.execute(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                step = f"sink {self._sink!r}, {what} slice {self._entry}"
                raise self._client.translate(answer, step) from answer
        return answers

    @abstractmethod
    def _remove(self) -> list[Any]:
        """Remove the slice and its entry, and return the store's responses."""
