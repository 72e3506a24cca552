"""Check a batch against its checkpoint, if ``offsets/N`` may differ from what the running query has planned.

A difference has two possible causes. The checkpoint's store may let another driver overwrite the file. Or the user may have
passed the location of a copy of the query's checkpoint. The copy has the same query id, but Spark does not write the new batches
to the copy.

Spark's offset log relies on a rename that fails if the target exists (``CheckpointFileManager.createAtomic``). If the rename
replaces the target instead, two drivers may conflict. One driver may be paused in the middle of a write, and may later replace
the offsets of a batch that the other driver has planned. Then a decision's offsets or times would not match the rows that it
commits, and a restart would lose or duplicate the rows that differ. The rename replaces the target even on a local path: see
:func:`~twopc.integration.spark.hadoop_files.renames_exclusively`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from twopc.errors import ConfigurationError, FatalError
from twopc.integration.spark import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from twopc.files import Files
    from twopc.integration.spark.running import RunningQuery
    from twopc.times import Times

#: What Spark writes for a source without an offset.
_NONE: Final = "-"


def require_not_overwritten(
    query: RunningQuery, files: Files, batch_id: int, own_location: Callable[[], str] | None = None
) -> None:
    """Check that the batch's offsets in the checkpoint match the offsets in the running query's memory.

    If the query keeps state, the batch's times must also match (:func:`twopc.batch.locate`).

    Args:
        query: the query.
        files: the checkpoint that the toolkit uses.
        batch_id: the batch.
        own_location: returns the location of the checkpoint that the query uses. None means the location of ``files``.

    Raises:
        FatalError: the offsets or the times differ.
        ConfigurationError: they differ, and ``files`` may not be the query's checkpoint.
        ConfigurationError: this version of Spark does not expose the running query's offsets.
    """
    entry = checkpoint.read_entry(files, batch_id)
    by_source, times = ({}, None) if entry is None else (entry.by_source, entry.times)
    offsets = [*by_source.values()]
    written = f"[{', '.join(offsets)}]"
    try:
        planned = query.planned_offsets
        running = str(planned)  # one call, for any number of sources
        if running == written or _are_equal(query, planned, offsets):
            if times is None or not files.names("state") or query.planned_times == times:
                return
            written, running = f"{written} {_shown(times)}", f"{running} {_shown(query.planned_times)}"
    except Py4JError as error:
        raise ConfigurationError(
            f"{files.location}/offsets/{batch_id} may not contain the offsets that this run has planned. Another driver "
            "could have overwritten them, or the location could be a copy of the query's checkpoint. This version of Spark "
            f"does not show the running query's offsets ({error}). This run has not written any part of the batch. Use a Spark "
            "version listed in the documentation. Or use a checkpoint on HDFS, and omit checkpoint_location"
        ) from error
    own = files.location if own_location is None else own_location()
    if own != files.location:
        raise ConfigurationError(
            f"{files.location}/offsets/{batch_id} contains the offsets {written}, but this run planned the "
            f"batch with {running}. The query's checkpoint is {own}, but exactly_once() was given "
            f"checkpoint_location={files.location!r}. This run has not written any part of the batch. If these are two "
            "directories, one is a copy of the other. Pass the checkpoint of the run that wrote last to "
            ".option('checkpointLocation', …), omit checkpoint_location, and restart. If these are two names of one "
            "directory, another driver has overwritten the offsets. Make sure that only one driver is running, and "
            "restart that driver"
        )
    raise FatalError(
        f"{files.location}/offsets/{batch_id} contains the offsets {written}, but this run planned the "
        f"batch with {running}. So another driver that uses this checkpoint has overwritten the offsets. This run has "
        "not written any part of the batch. Make sure that only one driver is running. Then restart that driver, which will "
        "use the offsets in the checkpoint"
    )


def _shown(times: Times) -> str:
    return f"with the watermark {times.watermark_ms} ms and the time {times.timestamp_ms} ms"


def running_query(session: SparkSession, query_id: str) -> Any:
    """Find Spark's object for a running query.

    The public API exposes only the finished batches, and only to the session that started the query.

    A batch has its own session, but all sessions share the running queries.
    """
    session_of_batch: Any = session._jsparkSession  # noqa: SLF001 - see above
    key = session.sparkContext._jvm.java.util.UUID.fromString(query_id)  # type: ignore[union-attr]  # noqa: SLF001 - see above
    return session_of_batch.sharedState().activeStreamingQueries().get(key)


def _are_equal(query: RunningQuery, planned: Any, written: list[str]) -> bool:
    """Whether the offsets are equal, even if their texts or the sources' order differ.

    Version 1 of the file has a line for each position of a source in the query. The lines of version 2 have no order. A source
    that the query reads twice has only one line, and a source without an offset has no line (``toOffsetMap`` in Spark's
    ``StreamProgress``).
    """
    lines = sorted(map(_canonical, written))
    return lines == sorted(map(_canonical, _by_position(planned))) or lines == sorted(
        _canonical(str(offset.json())) for offset in _each(query.offsets_of_sources)
    )


def _by_position(planned: Any) -> list[str]:
    return [str(one.get().json()) if one.isDefined() else _NONE for one in _each(planned.offsets())]


def _each(collection: Any) -> Iterator[Any]:
    """Yield the elements of a Scala collection."""
    elements = collection.iterator()
    while elements.hasNext():
        yield elements.next()


def _canonical(offset: str) -> str:
    try:
        return json.dumps(json.loads(offset), sort_keys=True)
    except ValueError:
        return offset
