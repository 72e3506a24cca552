"""Write several DataFrames of one batch to their sinks, with one decision: ``each({"orders": a, "audit": b}, batch_id)``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame

from twopc.errors import ConfigurationError
from twopc.integration.spark.connect import require_own_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from twopc.sink import TwoPhaseCommitSink

    #: One DataFrame for all sinks, or a DataFrame for each sink, by its name. None: the sink receives nothing.
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


def taken_once(frames: Frames) -> Frames:
    """Take each DataFrame from the user's mapping once, and keep it, because a mapping may make a new one at each access."""
    return dict(frames) if isinstance(frames, Mapping) else frames


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
    frames = taken_once(frames)
    for one in frames.values() if isinstance(frames, Mapping) else (frames,):
        require_own_frame(one, batch_id)
    if isinstance(frames, DataFrame):
        return [SinkFrame("", frames, tuple(sinks))]
    if not isinstance(frames, Mapping):
        raise ConfigurationError(f"batch {batch_id} is {_described(frames)}. Nothing was written. {_USAGE}")
    names = {sink.name for sink in sinks}
    if unknown := sorted(str(name) for name in frames if name not in names):
        raise ConfigurationError(
            f"the call for batch {batch_id} passes a DataFrame for {unknown[0]!r}, but the sinks are "
            f"{', '.join(sorted(names))}. Nothing was written. Use the sinks' names as the dictionary's keys, or add "
            "the missing sink to exactly_once(…)"
        )
    if missing := sorted(names - set(frames)):
        raise ConfigurationError(
            f"the call for batch {batch_id} passes no DataFrame for sink {missing[0]!r}. Nothing was written. Add a "
            f"DataFrame for this sink, or add {missing[0]!r}: None if the sink should receive no rows"
        )
    taken: dict[int, list[TwoPhaseCommitSink[Any]]] = {}
    for sink in sorted(sinks, key=lambda sink: sink.name):
        if frames[sink.name] is not None:
            taken.setdefault(id(frames[sink.name]), []).append(sink)
    if not taken:
        raise ConfigurationError(
            f"the call for batch {batch_id} passes None for every sink. Nothing was written. Pass a DataFrame for at least "
            "one sink, such as batch.limit(0), so that Spark evaluates the batch"
        )
    return [_sink_frame(frames[group[0].name], group, batch_id) for group in taken.values()]


_ONE_CALL: Final = (
    "Write each batch with a single call. Pass a dictionary that maps each sink name to a DataFrame, such as "
    'each({"orders": orders, "audit": audit}, batch_id). If two DataFrames go to one sink, pass one.unionByName(other)'
)
_USAGE: Final = (
    "Pass a Spark DataFrame, or a dictionary that maps each sink name to a Spark DataFrame. batch.sparkSession."
    "createDataFrame(rows) makes one from a pandas DataFrame, and rows.to_spark() makes one from a pandas-on-Spark DataFrame"
)


class Passed(NamedTuple):
    """What a call passes to the ``exactly_once`` object, or what the last interceptor passes on.

    Attributes:
        batch_id: the batch's number.
        by_sink: maps a sink's name to its DataFrame.
    """

    batch_id: int
    by_sink: Mapping[str, DataFrame]

    @staticmethod
    def of(frames: Frames, sinks: Sequence[TwoPhaseCommitSink[Any]], batch_id: int) -> Passed:
        """Return what the user's function passes. An interceptor may still add the DataFrames of other sinks."""
        by_sink = frames if isinstance(frames, Mapping) else {sink.name: frames for sink in sinks}
        return Passed(batch_id, {name: frame for name, frame in by_sink.items() if frame is not None})


@dataclass(frozen=True)
class Call:
    """A call for a batch.

    Attributes:
        batch_id: the batch's number.
        frames: the DataFrames and their sinks.
        select: the SQL expressions that make the sinks' columns, by sink name.
    """

    batch_id: int
    frames: tuple[SinkFrame, ...]
    select: Mapping[str, Sequence[str]]

    @property
    def sinks(self) -> list[list[str]]:
        """The names of each DataFrame's sinks."""
        return [sorted(sink.name for sink in one.sinks) for one in self.frames]

    @property
    def passed(self) -> Passed:
        """The DataFrame of each sink."""
        return Passed(self.batch_id, {sink.name: one.frame for one in self.frames for sink in one.sinks})

    def repeats(self, other: Call, same_rows: Callable[[DataFrame, DataFrame], bool]) -> bool:
        """Whether both calls pass the same rows to the same sinks.

        Args:
            other: an earlier call.
            same_rows: see :meth:`~twopc.integration.spark.mode.Mode.same_rows`.
        """
        if self is other:  # another attempt of one call, whose rows cannot change
            return True
        is_alike = (self.batch_id, self.sinks, self.select) == (other.batch_id, other.sinks, other.select)
        return is_alike and all(
            same_rows(one.frame, its.frame) for one, its in zip(self.frames, other.frames, strict=True)
        )


class VisibleCall:
    """A call whose rows are visible. Keeps no DataFrame alive, so that Spark can release the DataFrame's resources.

    Args:
        passed: the call.

    Attributes:
        batch_id: the batch's number.
    """

    def __init__(self, passed: Passed) -> None:
        self.batch_id = passed.batch_id
        self._frames = {name: _reference(frame) for name, frame in passed.by_sink.items()}

    def is_repeated_by(self, passed: Passed) -> bool:
        """Whether a later call of the same ``exactly_once`` object passes the very same DataFrames to the same sinks.

        An equal plan is not enough: a table may have changed between the calls, and nothing would report the difference.
        """
        is_same = [self._frames[name]() is frame for name, frame in passed.by_sink.items() if name in self._frames]
        return passed.by_sink.keys() == self._frames.keys() and all(is_same)

    @property
    def where(self) -> str:
        """The names of the sinks in which the rows are visible, for messages."""
        return _quoted(self._frames)


def _reference(frame: object) -> Callable[[], object | None]:
    try:
        return weakref.ref(frame)
    except TypeError:  # not a DataFrame; only an interceptor knows what it means, so it equals nothing
        return lambda: None


def require_visible(
    call: Passed, visible: VisibleCall, other_data: Callable[[DataFrame], str | None], *, is_same_object: bool
) -> None:
    """Check that the rows of a second call for a batch are already visible. Rows that are not visible would be lost.

    Args:
        call: the second call.
        visible: the first call.
        other_data: see :meth:`~twopc.integration.spark.mode.Mode.other_data`. Such data may have changed between the
            calls, although the DataFrame object is the same.
        is_same_object: whether one ``exactly_once`` object received both calls. A different object may write different
            columns.

    Raises:
        ConfigurationError: the rows may differ from the visible rows.
    """
    if not (is_same_object and visible.is_repeated_by(call)):
        raise _second_call(call, visible, "it does not pass the same DataFrame objects to the same sinks")
    for name, frame in call.by_sink.items():
        if (found := other_data(frame)) is not None:
            raise _second_call(
                call,
                visible,
                f"its DataFrame for sink {name!r} reads data other than the batch ({found}). Those data may have "
                "changed since the first call",
            )


def _second_call(call: Passed, visible: VisibleCall, difference: str) -> ConfigurationError:
    return ConfigurationError(
        f"this is the second call for batch {call.batch_id}, and {difference}. The first call's rows are visible in "
        f"{visible.where}. This call wrote nothing, and no restart will write its rows. There are two cases. (1) Both calls "
        "pass the same rows, for example because a retry repeats the whole function. In this case, no row is missing, so do not "
        "write any rows by hand. Change the function so that it retries only the part after the call, and restart the query. (2) "
        f"The calls pass different rows. In this case, fix the function. {_ONE_CALL}. Then write this call's rows of batch "
        f"{call.batch_id} by other means, and restart"
    )


def other_rows(call: Call) -> ConfigurationError:
    """Build the error for a call that differs from a failed earlier call, after which the batch may have been decided.

    The batch keeps the decided rows, so any other rows would be lost.
    """
    return ConfigurationError(
        f"this call for batch {call.batch_id} does not pass the same DataFrame objects to the same sinks as the first "
        "call (under Spark Connect, a DataFrame that names a table or a view counts as a different one in each call). The first "
        "call failed, but the batch may already have been decided. If so, its decided rows are "
        "visible, or will become visible after the restart. This call wrote nothing. There are two cases. (1) Both calls "
        "pass the same rows, for example because a retry creates new DataFrames. In this case, no row is missing, so do not "
        "write any rows by hand, and restart the query. To avoid this error, create the DataFrames before the part that is "
        f"retried. (2) The calls pass different rows. In this case, fix the function. {_ONE_CALL}. Then restart. If this call's "
        f"rows of batch {call.batch_id} are then missing from the output, write them by other means"
    )


def require_decided_sinks(call: Call, decided: Collection[str]) -> None:
    """Check that a call may be the replay of the call that was decided.

    The function may make several calls for a batch, and keep its own record of the calls that have returned. If the driver dies
    between two calls, the second one is the first call of the next run.

    Args:
        call: the call.
        decided: see :meth:`twopc.coordinator.Coordinator.decided_sinks`.

    Raises:
        ConfigurationError: the batch was decided without a DataFrame for any of the call's sinks.
    """
    passed = {sink.name for one in call.frames for sink in one.sinks}
    is_for_all = any(not one.name for one in call.frames)
    if not decided or is_for_all or not passed.isdisjoint(decided):
        return
    raise ConfigurationError(
        f"this call for batch {call.batch_id} passes DataFrames only for {_quoted(passed)}, but the batch was already decided "
        f"with DataFrames only for {_quoted(decided)}. The decided rows are visible, or will become visible after the restart. "
        "This call wrote nothing. There are two cases. (1) The function calls exactly_once() several times for a batch, and the "
        f"run stopped, or a call failed, before the last of them. In this case, fix the function. {_ONE_CALL}. Then write this "
        f"call's rows of batch {call.batch_id} by other means, and restart. (2) The function now passes the same rows for other "
        "sinks, for example because its code has changed. In this case, no row is missing, so do not write any rows by hand. "
        f"Undo the change, and restart. When batch {call.batch_id} is complete, you may make the change again"
    )


def _quoted(names: Collection[str]) -> str:
    return ", ".join(sorted(map(repr, names)))


def _sink_frame(frame: Any, sinks: Sequence[TwoPhaseCommitSink[Any]], batch_id: int) -> SinkFrame:
    name = sinks[0].name
    if not isinstance(frame, DataFrame):
        raise ConfigurationError(
            f"the call for batch {batch_id} passes {_described(frame)} for sink {name!r}. Nothing was written. {_USAGE}"
        )
    return SinkFrame(name, frame, tuple(sinks))


def _described(value: object) -> str:
    kind = type(value)
    # Other libraries also have classes called DataFrame, so the name alone may mislead.
    return f"a {kind.__name__}" + ("" if kind.__module__ == "builtins" else f" from the module {kind.__module__}")
