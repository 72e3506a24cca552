"""Request a savepoint from a running query: write a request file to the query's checkpoint, and wait for the response file."""

from __future__ import annotations

import contextlib
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError, RetriableError
from twopc.files import UnlinkedFiles
from twopc.integration.local_paths import local_path
from twopc.integration.operate.checkpoint import read_checkpoint
from twopc.integration.operate.manifest import Savepoint, open_savepoint
from twopc.integration.operate.savepoint import create_savepoint
from twopc.sealed import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from twopc.sinks.kafka import KafkaSink

#: The prefixes of the file names. The requester chooses the rest, which is the same for a request and its response.
REQUESTS: Final = "savepoint-request-"
ANSWERS: Final = "savepoint-request-answer-"
_POLL_S: Final = 0.05


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a running query for a savepoint. With ``stop``, the query stops afterward."""

    directory: str
    stop: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request: the savepoint's path, or the reason why no savepoint was taken."""

    path: str | None = None
    problem: str | None = None


def requests_in(checkpoint: Path) -> UnlinkedFiles:
    """Open the directory of requests.

    Each file name is used only once, so a file never has two writers. For this reason, a file share without hard links is
    sufficient. However, some shares let two machines remove the same file. On such a share, a requester that gives up
    just as the query responds cannot be sure whether the query stops.
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
        the savepoint; None if ``is_over`` returned True before the query responded. In this case, the request was withdrawn.

    Raises:
        ConfigurationError: the checkpoint does not exist, or the query could not take the savepoint.
        RetriableError: no response came in time, so the request was withdrawn.
    """
    checkpoint, directory = local_path(checkpoint), local_path(directory)
    read_checkpoint(checkpoint)
    files, name = requests_in(checkpoint), uuid.uuid4().hex
    request = Request(directory=str(directory.resolve()), stop=stop)
    try:
        files.put_if_absent(REQUESTS + name, seal(request))
    except OSError as error:
        raise ConfigurationError(
            f"the request for a savepoint cannot be written to {files.location}: {error}. The query continues, and "
            "nothing has changed. Free some disk space, or fix the directory's permissions. Then run the command again"
        ) from error
    deadline, ended = time.monotonic() + timeout_s, False
    try:
        # The query writes its response before it removes the request; see `_Run._tell`.
        while files.read(REQUESTS + name) is not None and time.monotonic() < deadline and not (ended := is_over()):
            time.sleep(_POLL_S)
    finally:
        # The query removes the request to confirm its response. If the request is already gone, the query discards the
        # response and continues.
        is_withdrawn = files.take(REQUESTS + name)
        data = files.read(ANSWERS + name)
        files.remove(ANSWERS + name)
    if is_withdrawn or data is None:
        if ended:
            return None
        raise RetriableError(
            f"the query that uses {checkpoint} did not respond within {timeout_s:.0f} s. Either the query has no new "
            "input, or it has ended, or its interceptors do not include Savepoints(…). The request was withdrawn, and nothing "
            "has changed. Stop the query, then run `twopc savepoint create`"
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

    A query that waits for input is between two batches, so it stops immediately. If the query begins a batch just as it
    is stopped, that batch may still be decided after the savepoint is taken.
    :func:`twopc.integration.operate.restore_savepoint` reports this case.

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
