"""Use Spark's objects to find the query that makes a call.

This module does not depend on settings that a user can change. A user can change job groups, local properties, names and
session settings, but not the query's thread or Spark's object for the query.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JError

from twopc.errors import ConfigurationError
from twopc.integration.spark.child_process import child_process_error
from twopc.times import Times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spark's setting for the directory in which it creates the checkpoints of queries without a ``checkpointLocation``.
CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"


class RunningQuery:
    """One run of a query, as seen from the thread that calls the user's function.

    Args:
        java: Spark's ``StreamExecution``.
        threads: the JVM's class ``java.lang.Thread``.

    Attributes:
        query_id: the query id, which survives restarts.
        run_id: Spark's id for the run. Spark assigns a new id at each start.
    """

    def __init__(self, java: Any, threads: Any) -> None:
        self.query_id = str(java.id())
        self.run_id = str(java.runId())
        self._java = java
        self._thread = java.queryExecutionThread()
        self._threads = threads
        self._known: threading.Thread | None = None  # the query's Python thread, once it is known

    @property
    def may_call(self) -> bool:
        """See :class:`~twopc.integration.spark.mode.Query`."""
        # Spark's isActive is false as soon as stop() begins, even while stop() waits for a call (MicroBatchExecution). The
        # run's thread removes the run from this map at its end, before stop() and awaitTermination() return
        # (StreamExecution). calling_query() accepts calls only from runs in the map.
        if (java := self._java) is None:
            return False
        try:
            return bool(java.equals(_running(java.sparkSession()).get(java.id())))
        except (Py4JError, OSError):  # the session's JVM has ended
            return False

    @property
    def checkpoint_location(self) -> str:
        """The checkpoint location, as a Hadoop path that names its file system (``ResolveWriteToStream`` in Spark)."""
        return str(self._java.resolvedCheckpointRoot())

    @property
    def name(self) -> str | None:
        """The name that the user has given to the query (``queryName``)."""
        name = self._java.name()
        return None if name is None else str(name)

    @property
    def checkpoint_parent(self) -> str | None:
        """The directory in which Spark makes the checkpoints of queries without a ``checkpointLocation``, if it is set."""
        return str(self._java.sparkSession().conf().get(CHECKPOINTS, "")) or None

    @property
    def execution(self) -> Any:
        """Spark's plan for the current batch (``IncrementalExecution``), from which ``ForeachBatchSink`` makes the DataFrame."""
        return self._java.lastExecution()

    @property
    def output_mode(self) -> str:
        """The query's output mode, in lower case."""
        return str(self._java.outputMode()).lower()

    @property
    def planned_offsets(self) -> Any:
        """The end offsets of the current batch in Spark's memory (``OffsetSeq``), in the order of the sources.

        A source that the query reads twice has two offsets here, as in the checkpoint.
        """
        return self._java.availableOffsets().toOffsetSeq(self._java.sources(), None)  # without the metadata

    @property
    def offsets_of_sources(self) -> Any:
        """The end offsets of the current batch in Spark's memory, unordered: one for each source that has an offset."""
        return self._java.availableOffsets().values()

    @property
    def planned_times(self) -> Times:
        """The times of the current batch in Spark's memory."""
        metadata = self.execution.offsetSeqMetadata()
        return Times(int(metadata.batchWatermarkMs()), int(metadata.batchTimestampMs()))

    @property
    def batch_id(self) -> int:
        """The batch that Spark is processing."""
        return int(self.execution.currentBatchId())

    def makes_this_call(self) -> bool:
        """Whether Spark is calling the user's function in the current thread, and is waiting for the function to return.

        Raises:
            ConfigurationError: the call comes from a forked child process.
        """
        # py4j uses a separate connection for each thread of the JVM, and a separate Python thread for each connection
        # (``clientserver.py``).
        present, thread = threading.current_thread(), self._thread
        if thread is None:  # the run has ended
            return False
        if self._known is not present and thread.equals(self._threads.currentThread()):
            self._known = present
        if self._known is not present:
            return False
        # A forked child inherits the thread and its connection, so the JVM cannot tell the child from its parent. But in the
        # child, the thread that has forked is the main thread, and py4j never calls a function in the main thread.
        if present is threading.main_thread():
            raise child_process_error()
        return True

    def close(self) -> None:
        """See :class:`~twopc.integration.spark.mode.Query`."""
        self._java = self._thread = self._known = None


class GivenCheckpoint(NamedTuple):
    """A checkpoint that the user has named.

    Attributes:
        location: the checkpoint location.
        query_id: the query id in the checkpoint.
    """

    location: str
    query_id: str


def calling_query(session: SparkSession, given: GivenCheckpoint | None) -> RunningQuery:
    """Find the query that makes the current call.

    Args:
        session: any session, because all sessions share the running queries.
        given: the checkpoint that the query must have; None for any checkpoint.

    Raises:
        ConfigurationError: the checkpoint belongs to another query, or the call does not come from a query's thread.
    """
    try:
        return _calling_query(session, given)
    except Py4JError as error:
        raise ConfigurationError(
            f"Spark {session.version} does not show which query is calling, so the caller cannot be verified. Nothing was "
            f"written. Use a Spark version listed in the documentation. Spark's error: {error}"
        ) from error


def _calling_query(session: SparkSession, given: GivenCheckpoint | None) -> RunningQuery:
    threads = session.sparkContext._jvm.java.lang.Thread  # type: ignore[union-attr]  # noqa: SLF001 - no public API for this
    for query in (RunningQuery(java, threads) for java in _active(session)):
        if not query.makes_this_call():
            continue
        if given is None or given.query_id == query.query_id:
            return query
        raise ConfigurationError(
            f"checkpoint_location={given.location!r} belongs to query {given.query_id}, but the call is from query "
            f"{query.query_id}, whose checkpoint is {query.checkpoint_location!r}. Nothing was written. Omit "
            "checkpoint_location, because exactly_once() finds the calling query's checkpoint on its own"
        )
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() != "true":
        raise ConfigurationError(
            "with PYSPARK_PIN_THREAD=false, the toolkit cannot find out which query is calling. Nothing was written. "
            "Unset PYSPARK_PIN_THREAD, because its default is true"
        )
    raise ConfigurationError(
        f"this call came from thread {threading.current_thread().name!r}, but Spark called your function in another "
        "thread. Spark considers a batch finished as soon as your function returns, even if other threads are still "
        "writing. Nothing was written. Call the exactly_once() object in the thread that runs your function. Other "
        'threads may do other work. To write several DataFrames, pass all of them in one call: each({"orders": orders, '
        '"audit": audit}, batch_id)'
    )


def _active(session: SparkSession) -> list[Any]:
    running = _running(session._jsparkSession)  # noqa: SLF001 - the public API shows only the queries of one session
    return [
        java for key in list(running) if (java := running.get(key)) is not None
    ]  # one of the queries may have ended


def _running(java_session: Any) -> Any:
    """Return Spark's map of the running queries of all sessions, by query id."""
    return java_session.sharedState().activeStreamingQueries()
