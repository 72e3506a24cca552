"""Through Spark Connect, find the query that made a call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError
from twopc.files import LocalFiles
from twopc.integration.connect.caller import Callers
from twopc.integration.connect.plans import plan_of_frame, plan_of_query
from twopc.integration.connect.worker import called_batch, is_child_of_call
from twopc.integration.spark import checkpoint
from twopc.integration.spark.child_process import child_process_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from twopc.integration.connect.plans import Plan

_SCHEME: Final = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/]*))?(?P<path>/.*)$")


def local_files(location: str) -> LocalFiles:
    """Open the checkpoint's directory on the server's host.

    Raises:
        ConfigurationError: the checkpoint is on another file system, or the path is relative.
    """
    found = _SCHEME.match(location)
    if found and (found["scheme"].lower() != "file" or found["host"] not in {None, "", "localhost"}):
        raise ConfigurationError(
            f"checkpoint_location={location!r}: under Spark Connect, this release supports only checkpoints on the "
            "file system of the server's host (file:/…). Nothing was written. Use a directory on that host, or run the "
            "query in a classic session"
        )
    path = found["path"] if found else location
    if not path.startswith("/"):
        raise ConfigurationError(
            f"checkpoint_location={location!r} is a relative path. Nothing was written. Pass the same absolute path to "
            "exactly_once() and to the option checkpointLocation"
        )
    return LocalFiles(path)


class ConnectQuery:
    """See :class:`~twopc.integration.spark.mode.Query`.

    Args:
        remote: PySpark's object for the query.
        location: the checkpoint location.

    Attributes:
        query_id: the query id, which survives restarts.
        run_id: Spark's id for the run. Spark assigns a new id at each start.
    """

    def __init__(self, remote: Any, location: str) -> None:
        self.query_id = str(remote.id)
        self.run_id = str(remote.runId)
        self._remote = remote
        self._location = location

    @property
    def may_call(self) -> bool:
        """See :class:`~twopc.integration.spark.mode.Query`. The process ends with its run."""
        return True

    @property
    def is_active(self) -> bool:
        """Whether the query runs and nobody has stopped it. False does not mean that the current call has ended."""
        try:
            return bool(self._remote.isActive)
        except Exception:  # noqa: BLE001 - the server has ended, or has forgotten the session
            return False

    @property
    def checkpoint_location(self) -> str:
        """See :class:`~twopc.integration.spark.mode.Query`."""
        return self._location

    @property
    def batch_id(self) -> int:
        """See :class:`~twopc.integration.spark.mode.Query`."""
        called = called_batch()
        if called is None:
            raise AssertionError("the caller has already been found")
        return called.batch_id

    def makes_this_call(self) -> bool:
        """See :class:`~twopc.integration.spark.mode.Query`. Each process serves one query.

        Raises:
            ConfigurationError: the call comes from a forked child process.
        """
        _require_no_child()
        return called_batch() is not None

    def close(self) -> None:
        """See :class:`~twopc.integration.spark.mode.Query`. The process ends with its run, so there is nothing to release."""

    def plan(self) -> Plan:
        """Return the plan of the batch that Spark is processing."""
        return plan_of_query(self._remote)


def calling_query(session: Any, files: LocalFiles, earlier: Collection[str] = ()) -> ConnectQuery:
    """Find the query that made the current call.

    Args:
        session: the batch's session.
        files: the checkpoint that the user has specified.
        earlier: the ids of the runs that were active before Spark started this process.

    Raises:
        ConfigurationError: Spark has not made the call, the checkpoint belongs to another query, or several queries may have
            made the call.
    """
    _require_no_child()
    if called_batch() is None:
        raise ConfigurationError(
            "this call did not come from Spark. It came from another thread, or from outside a foreachBatch function. "
            "Nothing was written. Call the exactly_once() object directly in the foreachBatch function. Other "
            "threads may do other work. If the function already calls the object directly, use a PySpark release listed "
            "in the documentation"
        )
    query_id = checkpoint.query_id(files)
    active = list(session.streams.active)
    mine = next((query for query in active if str(query.id) == query_id), None)
    if mine is None:
        raise ConfigurationError(
            f"checkpoint_location={files.location!r} belongs to query {query_id}, which is not running in this session. Nothing "
            "was written. There are three possible causes. (1) The query that you are running has another checkpoint. Set its "
            "checkpointLocation option to the location that you pass to exactly_once(). (2) The query was stopped during this "
            "call. Start it again to write the batch. (3) The DataFrame belongs to another session. Pass the batch, or a "
            "DataFrame that is made from the batch"
        )
    query = ConnectQuery(mine, files.location)
    found = _possible_runs(session, query.run_id, earlier, is_alone=len(active) == 1)
    if query.run_id not in found:
        raise ConfigurationError(
            f"checkpoint_location={files.location!r} belongs to query {query_id}, but this call came from another "
            "query in the same session. Nothing was written. Create a separate exactly_once() object for each query, "
            "with its own sinks. Set each query's option checkpointLocation to the same location that you pass to its "
            "exactly_once()"
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"checkpoint_location={files.location!r} belongs to query {query_id}, but this call may also have come "
            f"from another query in the same session ({', '.join(_names(active, found - {query.run_id}))}). The "
            "queries read the same DataFrame, and each of them is processing a batch, so Spark Connect does not show "
            "which query made this call. Nothing was written. Give each query its own DataFrame, with a separate "
            "readStream.….load(), or start each query only after the previous query has started. Then restart"
        )
    return query


def _require_no_child() -> None:
    if is_child_of_call():
        raise child_process_error()


def _possible_runs(session: Any, run_id: str, earlier: Collection[str], *, is_alone: bool) -> frozenset[str]:
    if is_alone:
        return frozenset({run_id}.difference(earlier))  # the common case, which needs no further requests
    return Callers(session, batch_columns(), earlier).wait_for(run_id)


def _names(queries: Iterable[Any], run_ids: Collection[str]) -> list[str]:
    return [f"query {query.id}" for query in queries if str(query.runId) in run_ids]


def batch_columns() -> set[str]:
    """Return the columns of the batch that Spark is waiting for, each with its number."""
    called = called_batch()
    if called is None:
        raise AssertionError("the caller has already been found")
    return set().union(*plan_of_frame(called.frame).batches)
