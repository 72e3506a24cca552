"""Take savepoints inside a query, between two batches: on request, and after every N batches."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from twopc.errors import ConfigurationError, FatalError, TwoPhaseCommitError
from twopc.integration.local_paths import local_path
from twopc.integration.operate.request import ANSWERS, REQUESTS, Answer, Request, requests_in
from twopc.integration.operate.retention import Retention
from twopc.integration.operate.savepoint import create_savepoint, missing_batches
from twopc.integration.spark.interceptors import Interceptor
from twopc.sealed import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.integration.operate.manifest import Savepoint
    from twopc.integration.spark.interceptors import InterceptedBatch
    from twopc.integration.spark.several import Frames
    from twopc.sinks.kafka import KafkaSink

logger = logging.getLogger(__name__)


class StoppedWithSavepointError(FatalError):
    """The query stopped with a savepoint, as an operator requested. The message contains the savepoint's path."""


class Periodic(NamedTuple):
    """The settings for periodic savepoints."""

    directory: Path
    every: int  #: the number of batches between two savepoints
    retention: Retention | None  #: None: retain every savepoint


class Savepoints(Interceptor):
    """Takes savepoints between two batches: ``exactly_once(sink, interceptors=[Savepoints(…)])``.

    Before a batch begins, all earlier batches are finished, so a savepoint is complete. The checkpoint must be on a local path.

    Args:
        directory: the directory for periodic savepoints.
        every: the number of batches between two savepoints. With None, savepoints are taken only on request.
        num_retained: how many of this query's good periodic savepoints to keep, counted from the newest. With None, all
            are kept. Requested savepoints are never deleted.
        sinks: Kafka sinks. Each savepoint records the position in each sink's decision log.

    Raises:
        ConfigurationError: ``every`` is set without ``directory``, or ``every`` or ``num_retained`` is less than 1.
    """

    def __init__(
        self,
        *,
        directory: str | None = None,
        every: int | None = None,
        num_retained: int | None = 10,
        sinks: Sequence[KafkaSink] = (),
    ) -> None:
        if num_retained is not None and num_retained < 1:
            raise ConfigurationError(
                f"Savepoints(num_retained={num_retained!r}): num_retained must be 1 or more, or None to keep all "
                "savepoints"
            )
        if every is not None and (every < 1 or directory is None):
            raise ConfigurationError(
                f"Savepoints(every={every!r}, directory={directory!r}): every must be 1 or more, and can be set only "
                "together with directory"
            )
        self._periodic: Periodic | None = None
        if every is not None and directory is not None:
            kept = local_path(directory)
            self._periodic = Periodic(kept, every, None if num_retained is None else Retention(kept, num_retained))
        self._sinks = sinks
        self._run: _Run | None = None

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        """See :class:`Interceptor`.

        Raises:
            ConfigurationError: the checkpoint is not on a local path.
            StoppedWithSavepointError: the query was asked to stop. No part of this batch was written.
            TwoPhaseCommitError: the batch failed. If only a savepoint fails, the failure is logged, the requester receives
                the reason, and the query continues.
        """
        if self._run is None or self._run.run_id != batch.run_id:
            self._run = _Run(local_path(batch.checkpoint_location), batch.run_id, self._periodic, self._sinks)
        self._run.before(batch.batch_id)
        proceed(batch.frames)
        self._run.after(batch.batch_id)


class _Run:
    def __init__(self, checkpoint: Path, run_id: str, periodic: Periodic | None, sinks: Sequence[KafkaSink]) -> None:
        self.run_id = run_id
        self._checkpoint = checkpoint
        self._requests = requests_in(checkpoint)
        self._unheard: set[str] = set()  # requests whose response could not be written
        self._periodic = periodic
        self._sinks = sinks
        self._since = 0  # batches since the last periodic savepoint
        self._done: int | None = None  # the last batch that this run has written
        self._next = 0  # the batch before which savepoints are taken

    def before(self, batch_id: int) -> None:
        """Serve requests, and take a periodic savepoint if one is due."""
        self._next = batch_id
        # Take no savepoint before a run's first batch, which may be a replay of a decided batch. A query restored from
        # such a savepoint would write the batch again.
        if self._done is not None and self._done < batch_id:
            self._serve()
            self._take_periodic()

    def after(self, batch_id: int) -> None:
        self._done = batch_id
        self._since += 1

    def _serve(self) -> None:
        for name in self._unanswered():
            answer, is_to_stop = self._answer(name)
            if self._tell(name, answer) and is_to_stop and answer.path is not None:
                raise StoppedWithSavepointError(
                    f"stopped with savepoint {answer.path}. No part of the next batch was written"
                )

    def _unanswered(self) -> list[str]:
        """List the open requests. If a request can neither be answered nor removed, it is still served only once."""
        try:
            names = self._requests.names("")
        except OSError as error:
            logger.warning(
                "the query cannot look for savepoint requests in %s. Cause: %s", self._requests.location, error
            )
            return []
        found = [name for name in names if name.startswith(REQUESTS) and not name.startswith(ANSWERS)]
        return [name for name in found if name not in self._unheard]

    def _answer(self, name: str) -> tuple[Answer, bool]:
        """Serve a request. Return the response, and whether the query must stop."""
        is_to_stop = False
        try:
            request = unseal(self._requests.read(name) or b"", Request)
            is_to_stop = request.stop
            return Answer(path=str(self._take(Path(request.directory)).path)), is_to_stop
        except (TwoPhaseCommitError, OSError, msgspec.DecodeError) as error:
            logger.warning("a requested savepoint could not be taken. Cause: %s", error)
            return Answer(problem=str(error)), is_to_stop

    def _tell(self, name: str, answer: Answer) -> bool:
        """Respond to a request. Return whether the requester was still waiting."""
        told = ANSWERS + name.removeprefix(REQUESTS)
        try:
            self._requests.put_if_absent(told, seal(answer))
            is_wanted = self._requests.take(name)
            if not is_wanted:
                self._requests.remove(told)
        except OSError as error:
            self._unheard.add(name)
            text = (
                "the response to a savepoint request could not be written, so the query continues. Cause: %s. The "
                "response was: %s"
            )
            logger.warning(text, error, answer.path or answer.problem)
            return False
        if not is_wanted:
            text = "a savepoint request was withdrawn while the savepoint was taken, so the query continues. The response was: %s"
            logger.warning(text, answer.path or answer.problem)
        return is_wanted

    def _take_periodic(self) -> None:
        if self._periodic is None or self._since < self._periodic.every:
            return
        self._since = 0
        directory, _, retention = self._periodic
        try:
            taken = self._take(directory, is_periodic=True)
            if retention is not None:
                retention.apply(taken.manifest.query_id)
        except TwoPhaseCommitError as error:
            logger.warning("the periodic savepoint could not be taken. The query continues. Cause: %s", error)
        except OSError as error:
            logger.warning(
                "old savepoints in %s could not be deleted. The query continues. Cause: %s", directory, error
            )

    def _take(self, directory: Path, *, is_periodic: bool = False) -> Savepoint:
        if (missing := missing_batches(self._done, self._next - 1, "the output")) is not None:
            raise ConfigurationError(
                f"{missing}. No savepoint was taken. Fix the foreachBatch function, and restart the query"
            )
        return create_savepoint(self._checkpoint, directory, sinks=self._sinks, is_periodic=is_periodic)
