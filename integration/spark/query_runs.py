"""Remember each run of a query in this process, even if the user creates a new ``exactly_once`` object for the same run.

A run never repeats a batch that it has finished: Spark replays only a batch that an earlier run left unfinished
(``MicroBatchExecution``). So a second call for a visible batch must repeat the first call, even
if the call goes through another object.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from twopc.errors import ConfigurationError
from twopc.integration.spark.kept import Runs
from twopc.integration.spark.several import VisibleCall, other_rows, require_visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from twopc.integration.spark.mode import Query, ShuffleCheck
    from twopc.integration.spark.several import Call, Passed

logger = logging.getLogger(__name__)


class Closable(Protocol):
    """A part of a run that has connections or threads."""

    def close(self) -> None:
        """Release connections and threads."""


class Writer(Closable, Protocol):
    """The writer of a run's batches."""

    def other_data(self, frame: DataFrame) -> str | None:
        """See :class:`~twopc.integration.spark.mode.Mode`."""


@dataclass
class QueryRun:
    """One run of a query. Only the query's thread uses this object, and :meth:`alone` refuses every other thread.

    Any thread may call :meth:`close`.

    Attributes:
        query: Spark's view of the run.
        shuffles: checks the run's jobs for rule 6.
        writer: the object that handled the last call.
    """

    query: Query
    shuffles: ShuffleCheck
    writer: Writer | None = field(default=None, repr=False)
    _visible: VisibleCall | None = field(default=None, init=False)  # what the interceptors have passed on
    _returned: VisibleCall | None = field(default=None, init=False)  # what the user's function has passed
    _may_repeat: bool = field(default=False, init=False)  # whether the interceptors added no data of their own
    _begun: Call | None = field(default=None, init=False)  # a call that has reached the sinks, and has not succeeded
    _writing: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)
    _unused: list[Closable] = field(default_factory=list, init=False, repr=False)  # to be closed
    _using: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @contextlib.contextmanager
    def alone(self, batch_id: int) -> Iterator[None]:
        """Let one call at a time write, in the thread in which Spark called the user's function.

        An interceptor may call ``proceed`` in any thread, and may call it again before the first call has ended.

        Raises:
            ConfigurationError: the call comes from another thread, or an earlier call has not ended.
        """
        if not self.query.makes_this_call():
            raise _other_thread(batch_id)
        if not self._writing.acquire(blocking=False):
            raise ConfigurationError(
                f"a second call for batch {batch_id} came before the first call was over. The second call wrote "
                "nothing, and the first call is not affected. Call the exactly_once() object, or an interceptor's "
                "proceed, again only after the previous call has returned or raised an error"
            )
        try:
            with self._using:  # waits for a thread that is just closing parts
                yield
        finally:
            self._writing.release()
            self._close_unused()

    def close(self, *parts: Closable) -> None:
        """Close parts of the run. If a call is writing, the call closes the parts once it has written its batch."""
        self._unused.extend(parts)
        self._close_unused()

    def _close_unused(self) -> None:
        # Look again after the release: another thread may have added a part just before, and may have found the lock held.
        while self._unused and self._using.acquire(blocking=False):
            try:
                while self._unused:
                    self._try_to_close(self._unused.pop())
            finally:
                self._using.release()

    def _try_to_close(self, part: Closable) -> None:
        try:
            part.close()
        except Exception:
            logger.warning(
                "the connections of query %s (run %s) were not closed properly. No data is at risk, because no call is using "
                "these connections. They may stay open until this process ends. You do not have to do anything",
                self.query.query_id,
                self.query.run_id,
                exc_info=True,
            )

    def take(self, call: Call, writer: Writer) -> bool:
        """Accept the rows of a batch. Return whether the rows must be written: False if they are already visible.

        Raises:
            ConfigurationError: the rows of the batch are already visible, and these rows may differ; see
                :func:`require_visible`.
        """
        if self._is_repeated(self._visible, call.passed, writer):
            return False
        if self.writer is not None and self.writer is not writer:
            self.writer.close()  # some users make an object for each batch, and the old connections would stay open
        self.writer = writer
        return True

    def is_repeat(self, passed: Passed, writer: Writer) -> bool:
        """Whether the user's function repeats a call that has returned. The interceptors must not see such a call.

        Compare what the function passes, because an interceptor may make a new DataFrame each time.

        Raises:
            ConfigurationError: see :meth:`take`.
        """
        return self._is_repeated(self._returned, passed, writer)

    def _is_repeated(self, visible: VisibleCall | None, passed: Passed, writer: Writer) -> bool:
        if visible is None or visible.batch_id != passed.batch_id:
            return False
        require_visible(passed, visible, writer.other_data, is_same_object=self.writer is writer)
        logger.warning(
            "batch %d is already visible in %s, and this second call passes the same DataFrames, so it "
            "writes nothing. No row is lost or duplicated",
            passed.batch_id,
            visible.where,
        )
        return True

    def begin(self, call: Call, same_rows: Callable[[DataFrame, DataFrame], bool], *, is_undecided: bool) -> None:
        """Let a call reach the sinks. After a failed call, any rows are safe while the batch is undecided.

        Args:
            call: the call.
            same_rows: see :meth:`~twopc.integration.spark.mode.Mode.same_rows`.
            is_undecided: whether the batch is certainly undecided.

        Raises:
            ConfigurationError: the batch may already have been decided with different rows.
        """
        failed = self._begun
        if failed is not None and failed.batch_id == call.batch_id and not call.repeats(failed, same_rows):
            if not is_undecided:
                raise other_rows(call)
            logger.warning(
                "the first call for batch %d failed before the batch was decided, so none of its rows are visible. "
                "This second call passes different DataFrames, and only its rows are written",
                call.batch_id,
            )
        self._begun = call

    def finish(self, call: Call, given: Passed, writer: Writer) -> None:
        """Record that a call's rows are visible.

        Args:
            call: the call, as the last interceptor passed it on.
            given: what the user's function has passed.
            writer: the writer of the call.
        """
        self._visible, self._begun = VisibleCall(call.passed), None
        derived = [frame for name, frame in call.passed.by_sink.items() if frame is not given.by_sink.get(name)]
        self._may_repeat = all(writer.other_data(frame) is None for frame in derived)

    def returned(self, passed: Passed) -> None:
        """Record that every interceptor has finished a call of the user's function.

        Do not record the call if an interceptor has written nothing, or has added data of its own. A repetition of the call then
        reaches the interceptors, which may pass other rows on. :meth:`take` refuses these rows.
        """
        if self._may_repeat and self._visible is not None and self._visible.batch_id == passed.batch_id:
            self._returned = VisibleCall(passed)

    @property
    def among_others(self) -> Runs:
        """This run, and all other runs that may still be active."""
        return Runs(self.query.run_id, frozenset(_runs) | {self.query.run_id})


_runs: Final[dict[str, QueryRun]] = {}
_lock: Final = threading.Lock()  # queries of one process start in separate threads


def enter_run(query: Query, check: Callable[[], ShuffleCheck]) -> QueryRun:
    """Find the current run of a query, or register the run. Drop the runs that have stopped.

    Args:
        query: the query that makes the current call.
        check: makes the shuffle check for a new run.
    """
    with _lock:
        if (known := _runs.get(query.run_id)) is not None:
            return known
        earlier = list(_runs.values())
        run = _runs[query.run_id] = QueryRun(query, check())
    for one in earlier:  # without the lock, so that other queries do not wait until the connections are closed
        drop_if_ended(one)
    return run


def _other_thread(batch_id: int) -> ConfigurationError:
    return ConfigurationError(
        f"an interceptor called proceed for batch {batch_id} in thread {threading.current_thread().name!r}, but Spark "
        "called your function in another thread. Spark considers a batch finished as soon as your function returns, "
        "even if other threads are still writing. This call wrote nothing. Call proceed in the thread that calls "
        "intercept. Other threads may do other work. To limit the time of a batch, use "
        "exactly_once(checkpoints=CheckpointConfig(timeout_ms=…))"
    )


def drop_if_ended(run: QueryRun) -> bool:
    """Forget a run that makes no more calls, and close its connections. Return whether the run has ended."""
    if run.query.may_call:
        return False
    with _lock:
        known = _runs.pop(run.query.run_id, None)
    if known is not None:
        # The last part is closed first.
        run.close(run.query, run.shuffles, *([] if run.writer is None else [run.writer]))
    return True
