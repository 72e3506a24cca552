"""Take savepoints inside a query, between two batches: on request, after every N batches, and when the query stops."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twopc.errors import ConfigurationError, FatalError, RetriableError, TwoPhaseCommitError
from twopc.files import UnlinkedFiles
from twopc.integration.local_paths import local_path
from twopc.integration.operate.checkpoint import read_checkpoint
from twopc.integration.operate.manifest import Savepoint, open_savepoint
from twopc.integration.operate.retention import Retention
from twopc.integration.operate.savepoint import create_savepoint
from twopc.integration.spark.interceptors import Interceptor
from twopc.sealed import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from twopc.integration.spark.interceptors import InterceptedBatch
    from twopc.integration.spark.several import Frames
    from twopc.sinks.kafka import KafkaSink

logger = logging.getLogger(__name__)

_REQUESTS: Final = "savepoint-request-"
_ANSWERS: Final = "savepoint-request-answer-"
_POLL_S: Final = 0.05


class StoppedWithSavepointError(FatalError):
    """The query stopped with a savepoint, as requested. The message contains the savepoint's path."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a running query for a savepoint. ``stop``: whether the query stops afterward."""

    directory: str
    stop: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request: the savepoint's path, or why no savepoint was taken."""

    path: str | None = None
    problem: str | None = None


class Periodic(NamedTuple):
    """The settings for periodic savepoints."""

    directory: Path
    every: int  #: the number of batches between two savepoints
    retention: Retention | None  #: None: retain every savepoint


class Savepoints(Interceptor):
    """Takes savepoints between two batches: ``exactly_once(sink, interceptors=[Savepoints(…)])``.

    Before a batch begins, all earlier batches are finished, so a savepoint is complete. The checkpoint must be on a local path.

    Args:
        directory: where periodic savepoints are kept.
        every: the number of batches between two savepoints. None: take savepoints only on request.
        num_retained: how many of this query's newest good periodic savepoints to keep. None: keep all. Requested savepoints
            always stay.
        sinks: Kafka sinks. Each savepoint records the positions of their decision logs.

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
                f"Savepoints(num_retained={num_retained!r}): num_retained must be 1 or more, or None for all"
            )
        if every is not None and (every < 1 or directory is None):
            raise ConfigurationError(
                f"Savepoints(every={every!r}, directory={directory!r}): every must be 1 or more, and needs a directory"
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
            TwoPhaseCommitError: the batch failed. A failed savepoint is logged and its requester receives the reason, but
                the query continues.
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
        self._requests = _requests_in(checkpoint)
        self._unheard: set[str] = set()  # requests whose response could not be written
        self._periodic = periodic
        self._sinks = sinks
        self._since = 0  # batches since the last periodic savepoint
        self._done: int | None = None  # the last batch that this run has written

    def before(self, batch_id: int) -> None:
        """Serve requests, and take the periodic savepoint if it is due."""
        # Take no savepoint before a run's first batch, which may be a replay of a decided batch. A query that is restored from
        # that savepoint would write the batch again.
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
        """List the open requests. A request that can be neither answered nor removed is served only once."""
        try:
            names = self._requests.names("")
        except OSError as error:
            logger.warning("%s cannot be searched for savepoint requests: %s", self._requests.location, error)
            return []
        found = [name for name in names if name.startswith(_REQUESTS) and not name.startswith(_ANSWERS)]
        return [name for name in found if name not in self._unheard]

    def _answer(self, name: str) -> tuple[Answer, bool]:
        """Serve a request; return the response, and whether the query must stop."""
        is_to_stop = False
        try:
            request = unseal(self._requests.read(name) or b"", Request)
            is_to_stop = request.stop
            return Answer(path=str(self._take(Path(request.directory)).path)), is_to_stop
        except (TwoPhaseCommitError, OSError, msgspec.DecodeError) as error:
            logger.warning("a requested savepoint could not be taken: %s", error)
            return Answer(problem=str(error)), is_to_stop

    def _tell(self, name: str, answer: Answer) -> bool:
        """Answer a request; return whether the requester was still waiting."""
        told = _ANSWERS + name.removeprefix(_REQUESTS)
        try:
            self._requests.put_if_absent(told, seal(answer))
            # To withdraw, a requester removes the request and then checks for a response once more.
            is_wanted = self._requests.read(name) is not None
            self._requests.remove(name if is_wanted else told)
        except OSError as error:
            self._unheard.add(name)
            text = "a savepoint request could not be answered, so the query continues: %s. The answer was: %s"
            logger.warning(text, error, answer.path or answer.problem)
            return False
        if not is_wanted:
            text = "a savepoint request was withdrawn while it was served, so the query continues. The answer was: %s"
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
            logger.warning("the periodic savepoint could not be taken; the query continues: %s", error)
        except OSError as error:
            logger.warning("old savepoints in %s could not be deleted; the query continues: %s", directory, error)

    def _take(self, directory: Path, *, is_periodic: bool = False) -> Savepoint:
        return create_savepoint(self._checkpoint, directory, sinks=self._sinks, is_periodic=is_periodic)


def _requests_in(checkpoint: Path) -> UnlinkedFiles:
    """Open the directory of requests.

    Each name is used only once, so a file never has two writers. So a file share without hard links is sufficient.
    """
    return UnlinkedFiles(checkpoint / "twopc")


def request_savepoint(
    checkpoint: Path, directory: Path, *, stop: bool, timeout_s: float, is_over: Callable[[], bool] = lambda: False
) -> Savepoint | None:
    """Request a savepoint from a running query that has :class:`Savepoints`. The query responds before its next batch.

    Args:
        checkpoint: the query's checkpoint.
        directory: where to put the savepoint.
        stop: whether the query stops afterward.
        timeout_s: how long to wait, in seconds.
        is_over: returns True to stop waiting.

    Returns:
        the savepoint. None if ``is_over`` returned True first, and the request was withdrawn.

    Raises:
        ConfigurationError: the checkpoint does not exist, or the query could not take the savepoint.
        RetriableError: no response came in time. The request is withdrawn.
    """
    checkpoint, directory = local_path(checkpoint), local_path(directory)
    read_checkpoint(checkpoint)
    files, name = _requests_in(checkpoint), uuid.uuid4().hex
    request = Request(directory=str(directory.resolve()), stop=stop)
    try:
        files.put_if_absent(_REQUESTS + name, seal(request))
    except OSError as error:
        raise ConfigurationError(
            f"the request for a savepoint cannot be written to {files.location}: {error}. The query continues, and nothing "
            "has changed. Free some space, or correct the directory's permissions. Then repeat the request"
        ) from error
    deadline, ended, data = time.monotonic() + timeout_s, False, None
    try:
        while (
            (data := files.read(_ANSWERS + name)) is None and time.monotonic() < deadline and not (ended := is_over())
        ):
            time.sleep(_POLL_S)
        # After its answer, the query checks that somebody still waits, and removes the request; see `_tell`.
        while (
            data is not None
            and files.read(_REQUESTS + name) is not None
            and time.monotonic() < deadline
            and not is_over()
        ):
            time.sleep(_POLL_S)
    finally:
        files.remove(_REQUESTS + name)  # from here on, the query no longer answers
        data = data or files.read(_ANSWERS + name)
        files.remove(_ANSWERS + name)
    if data is None:
        if ended:
            return None
        raise RetriableError(
            f"the query of {checkpoint} did not answer within {timeout_s:.0f} s: it has no new input, has ended, or has no "
            "Savepoints(…) among its interceptors. The request is withdrawn, and nothing has changed. Stop the query, then run "
            "`twopc savepoint create`"
        )
    answer = unseal(data, Answer)
    if answer.path is None:
        raise ConfigurationError(f"the query continues, but the savepoint was not taken: {answer.problem}")
    return open_savepoint(Path(answer.path))


def stop_with_savepoint(
    query: StreamingQuery,
    checkpoint_location: str,
    directory: str,
    *,
    sinks: Sequence[KafkaSink] = (),
    timeout_s: float = 600,
) -> Savepoint:
    """Stop a query in this process at the end of a batch, and take a savepoint.

    A query that waits for input stops immediately, because it is between two batches. If the query begins a batch just then,
    that batch may be decided after the savepoint. :func:`twopc.integration.operate.restore_savepoint` reports this case.

    Raises:
        ConfigurationError: the savepoint could not be taken.
        RetriableError: the query did not reach the end of a batch in time. It continues.
    """
    checkpoint, kept = local_path(checkpoint_location), local_path(directory)

    def is_over() -> bool:
        if not query.isActive:
            return True
        status = query.status
        return not status["isTriggerActive"] and not status["isDataAvailable"]

    found = request_savepoint(checkpoint, kept, stop=True, timeout_s=timeout_s, is_over=is_over)
    if found is None:
        query.stop()
        return create_savepoint(checkpoint, kept, sinks=sinks)
    with contextlib.suppress(Exception):  # the query ends with StoppedWithSavepointError
        query.awaitTermination(timeout_s)  # type: ignore[arg-type]
    return found
