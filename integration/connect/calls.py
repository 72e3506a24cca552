"""Handle calls to ``exactly_once`` under Spark Connect.

The client creates the object that ``exactly_once`` returns, and another process calls a copy of this object. The client
may have only ``pyspark-client`` installed, so this module does not import the classic part of PySpark before the first
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyspark

from twopc.errors import ConfigurationError
from twopc.integration.connect.one_shuffle import Ruled
from twopc.integration.connect.start import Start
from twopc.integration.connect.worker import called_batch, is_worker
from twopc.integration.spark.options import require_picklable
from twopc.integration.spark.query_runs import enter_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.integration.spark.mode import ShuffleCheck
    from twopc.integration.spark.options import Options
    from twopc.integration.spark.run_writer import RunWriter
    from twopc.sink import TwoPhaseCommitSink

_CLASSIC: Final = "Or run the query in a classic session: SparkSession.builder.master(…)"


class ConnectCalls:
    """See :class:`~twopc.integration.spark.mode.Calls`.

    Args:
        sinks: the sinks that receive rows.
        location: the checkpoint location.
        options: the user's options.

    Raises:
        ConfigurationError: the location is missing, or an option is not available.
    """

    def __init__(self, sinks: Sequence[TwoPhaseCommitSink[Any]], location: str | None, options: Options) -> None:
        self._sinks = sinks
        self._location = _require_available(location, options)
        self._options = options
        session = _session_at_start()
        # Spark starts this process before it starts the process's query, so every query that is active now started earlier.
        self._earlier = frozenset(() if session is None else (str(query.runId) for query in session.streams.active))
        self._start = Start() if session is None else Start.of(session)
        self._shuffles = None if session is None else self._check(session, is_at_start=True)
        self._writer: RunWriter | None = None

    def open_writer(self, session: Any) -> RunWriter:
        """See :class:`~twopc.integration.spark.mode.Calls`."""
        from twopc.integration.connect.mode import ConnectMode  # noqa: PLC0415 - see the module's docstring
        from twopc.integration.connect.query import calling_query, local_files  # noqa: PLC0415 - see the module's docstring
        from twopc.integration.spark.run_writer import RunWriter  # noqa: PLC0415 - see the module's docstring

        if self._writer is not None and self._writer.run.query.makes_this_call():
            return self._writer  # a process serves one run of one query
        files = local_files(self._location)
        query = calling_query(session, files, self._earlier)
        mode = ConnectMode(session, query, self._start)
        run = enter_run(query, lambda: self._shuffles or self._check(session))
        self._writer = RunWriter(run, mode, files.location, self._sinks, self._options)
        return self._writer

    def _check(self, session: Any, *, is_at_start: bool = False) -> ShuffleCheck:
        from twopc.integration.connect.ui_shuffles import open_shuffles  # noqa: PLC0415 - see the module's docstring

        address = self._options.checkpoints.spark_ui
        return Ruled() if address is None else open_shuffles(session, address, is_at_start=is_at_start)

    def close(self) -> None:
        """See :class:`~twopc.integration.spark.mode.Calls`. The run stays known, because the process ends with it."""
        if self._writer is not None:
            self._writer.run.close(self._writer)


def _require_available(location: str | None, options: Options) -> str:
    if pyspark.__version__.startswith("3."):
        raise ConfigurationError(
            "under Spark Connect, exactly_once() needs Spark 4.0 or newer, but this process uses "
            f"{pyspark.__version__}. Nothing was written. Upgrade Spark. {_CLASSIC}"
        )
    if location is None:
        raise ConfigurationError(
            "exactly_once(): under Spark Connect, the toolkit cannot find the calling query's checkpoint. Nothing was "
            "written. Pass checkpoint_location, the same path as in .option('checkpointLocation', …)"
        )
    for name, is_given in (("interceptors", bool(options.interceptors)), ("staging", options.staging is not False)):
        if is_given:
            raise ConfigurationError(
                f"exactly_once({name}=…) is not available under Spark Connect in this release. Nothing was written. Omit it. "
                f"{_CLASSIC}"
            )
    for listener in options.listeners:
        require_picklable(
            listener,
            f"the listener {type(listener).__name__} cannot be sent to Spark Connect's server, where the query's driver runs",
            "Nothing was written. Create connections, locks, files and threads when the listener receives its first "
            "event, not in its constructor. Pass a port to PrometheusMetrics, not a registry",
        )
    return location


def _session_at_start() -> Any:
    """Return the query's session just before the query starts, when PySpark copies the object; None at any other time."""
    if not is_worker() or called_batch() is not None:
        return None
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415 - this module cannot be imported without grpc

    return SparkSession.getActiveSession()
