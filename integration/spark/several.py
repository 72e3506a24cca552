"""Write several DataFrames of one batch to their sinks, with one decision: ``each({"orders": a, "audit": b}, batch_id)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame

from twopc.errors import ConfigurationError
from twopc.integration.spark.connect import require_own_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.sink import TwoPhaseCommitSink

    #: One DataFrame for all sinks, or one for each sink by its name, with None for a sink that receives nothing.
    Frames = DataFrame | Mapping[str, DataFrame | None]


class SinkFrame(NamedTuple):
    """A DataFrame and the sinks that use it.

    Attributes:
        name: identifies the DataFrame in every replay. The name is the first of the sinks' names in alphabetical order, or
            empty if one DataFrame is for all sinks.
        frame: the DataFrame.
        sinks: one or more sinks.
    """

    name: str
    frame: DataFrame
    sinks: tuple[TwoPhaseCommitSink[Any], ...]


def any_frame(frames: object) -> DataFrame | None:
    """Return any of the user's DataFrames, or None if the user passed none."""
    given = frames.values() if isinstance(frames, Mapping) else (frames,)
    return next((one for one in given if isinstance(one, DataFrame)), None)


def by_frame(frames: Frames, sinks: Sequence[TwoPhaseCommitSink[Any]], batch_id: int) -> list[SinkFrame]:
    """Group the sinks by the DataFrame that they take. A DataFrame that is passed twice is evaluated once.

    Args:
        frames: the user's argument.
        sinks: all sinks except the dead-letter sink, which takes the bad rows of every DataFrame.
        batch_id: for messages.

    Raises:
        ConfigurationError: a sink has no DataFrame, a key is not a sink name, or a value is not a DataFrame from a classic
            session.
    """
    given = frames.values() if isinstance(frames, Mapping) else (frames,)
    for one in given:
        require_own_frame(one, batch_id)
    if isinstance(frames, DataFrame):
        return [SinkFrame("", frames, tuple(sinks))]
    if not isinstance(frames, Mapping):
        raise ConfigurationError(f"batch {batch_id} is {_described(frames)}. Nothing was written. {_USAGE}")
    names = {sink.name for sink in sinks}
    if unknown := sorted(str(name) for name in frames if name not in names):
        raise ConfigurationError(
            f"batch {batch_id} has a DataFrame for {unknown[0]!r}, but the sinks are {', '.join(sorted(names))}. "
            "Nothing was written. Use the sinks' names as the dictionary's keys, or add the sink to exactly_once(…)"
        )
    if missing := sorted(names - set(frames)):
        raise ConfigurationError(
            f"batch {batch_id} has no DataFrame for sink {missing[0]!r}. Nothing was written. Add a DataFrame, or add "
            f"{missing[0]!r}: None if the sink gets nothing"
        )
    taken: dict[int, list[TwoPhaseCommitSink[Any]]] = {}
    for sink in sorted(sinks, key=lambda sink: sink.name):
        if frames[sink.name] is not None:
            taken.setdefault(id(frames[sink.name]), []).append(sink)
    if not taken:
        raise ConfigurationError(
            f"batch {batch_id} has None for every sink. Nothing was written. Pass a DataFrame for at least one sink, such "
            "as batch.limit(0), so that Spark evaluates the batch"
        )
    return [_sink_frame(frames[group[0].name], group, batch_id) for group in taken.values()]


_ONE_CALL: Final = (
    "Write a batch with one call. Pass a dictionary with a DataFrame for each sink name, such as "
    'each({"orders": orders, "audit": audit}, batch_id). If two DataFrames go to one sink, pass one.unionByName(other)'
)
_USAGE: Final = "Pass a DataFrame, or a dictionary that has a DataFrame for each sink name"


@dataclass(frozen=True)
class Call:
    """A call for a batch.

    Attributes:
        batch_id: the batch's number.
        frames: the DataFrames; None once the call has succeeded.
    """

    batch_id: int
    frames: tuple[DataFrame, ...] | None


def require_one_call(call: Call, last: Call | None) -> None:
    """Check that only one call writes a batch. A second call would look like a replay, and its rows would be lost.

    A call that failed may be retried with the same DataFrames.

    Args:
        call: the current call.
        last: the previous call in the same run of the query.

    Raises:
        ConfigurationError: an earlier call for this batch succeeded, or failed with different DataFrames.
    """
    if last is None or call.batch_id != last.batch_id:
        return
    if last.frames is None:
        raise ConfigurationError(
            f"this is the second call for batch {call.batch_id}. The rows of this call were not written, and no restart "
            f"will write them. The rows of the first call are visible. {_ONE_CALL}. Fix the function, write this "
            f"call's rows of batch {call.batch_id} by other means, and restart"
        )
    if len(call.frames or ()) != len(last.frames) or not all(map(_same, call.frames or (), last.frames)):
        raise ConfigurationError(
            f"this call for batch {call.batch_id} has different DataFrames from the first call, which failed. The rows of "
            f"this call were not written. {_ONE_CALL}. Fix the function, and restart"
        )


def _same(frame: DataFrame, other: DataFrame) -> bool:
    return frame is other or frame.sameSemantics(other)


def _sink_frame(frame: Any, sinks: Sequence[TwoPhaseCommitSink[Any]], batch_id: int) -> SinkFrame:
    name = sinks[0].name
    if not isinstance(frame, DataFrame):
        raise ConfigurationError(
            f"batch {batch_id} has {_described(frame)} for sink {name!r}. Nothing was written. {_USAGE}"
        )
    return SinkFrame(name, frame, tuple(sinks))


def _described(value: object) -> str:
    return f"a {type(value).__name__}"
