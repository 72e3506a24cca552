"""Check the arguments of ``exactly_once``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle

from twopc.checkpoint_config import CheckpointConfig
from twopc.errors import ConfigurationError
from twopc.integration.spark.direct import DriverUpTo
from twopc.integration.spark.interceptors import Interceptor
from twopc.listeners import Listener
from twopc.override import Overrides
from twopc.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from twopc.integration.spark.direct import WriteBy

_WRITE_BY: Final = ("auto", "driver", "tasks")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of ``exactly_once`` except the sinks and the checkpoint location.

    See the docstring of ``exactly_once``.
    """

    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    dead_letter: TwoPhaseCommitSink[Any] | None = None
    select: Mapping[str, Sequence[str]] = field(default_factory=dict)
    staging: bool | str = field(default=False, repr=False)  # a URI may contain a key
    write_by: WriteBy = "auto"
    listeners: Sequence[Listener] = ()
    interceptors: Sequence[Interceptor] = ()
    overrides: Overrides = field(default_factory=Overrides)

    def __post_init__(self) -> None:
        object.__setattr__(self, "select", _copied(self.select))
        if not isinstance(self.checkpoints, CheckpointConfig):
            raise ConfigurationError(f"exactly_once(checkpoints={self.checkpoints!r}): pass a CheckpointConfig(…)")
        if not isinstance(self.write_by, DriverUpTo) and self.write_by not in _WRITE_BY:
            raise ConfigurationError(
                f"exactly_once(write_by={self.write_by!r}): pass one of {', '.join(map(repr, _WRITE_BY))}, or "
                "DriverUpTo(max_bytes)"
            )
        if not isinstance(self.staging, (bool, str)) or self.staging == "":
            raise ConfigurationError(
                f"exactly_once(staging={self.staging!r}): pass True to stage rows next to the checkpoint, or pass the path "
                "of a directory that the driver and every worker share"
            )
        if not all(isinstance(listener, Listener) for listener in self.listeners):
            raise ConfigurationError(
                "exactly_once(listeners=…): pass objects of classes that inherit from twopc.Listener"
            )
        if not all(isinstance(interceptor, Interceptor) for interceptor in self.interceptors):
            raise ConfigurationError(
                "exactly_once(interceptors=…): pass objects of classes that inherit from twopc.Interceptor, such as "
                "twopc.integration.operate.Savepoints"
            )
        letters = self.dead_letter
        if letters is not None and not (isinstance(letters, TwoPhaseCommitSink) and letters.takes_dead_letters):
            raise ConfigurationError(
                "exactly_once(dead_letter=…): this sink cannot accept dead letters. Pass a KafkaSink with a topic"
            )

    def require_fitting(self, sinks: Sequence[TwoPhaseCommitSink[Any]]) -> None:
        """Check the options that concern the sinks.

        Raises:
            ConfigurationError: there is no sink, two sinks have the same name, a sink cannot be pickled, or ``select`` names
                an unknown sink.
        """
        if not sinks:
            raise ConfigurationError("exactly_once(): pass at least one sink")
        names = [sink.name for sink in participants(sinks, self)]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"exactly_once(): two of the sinks {names} have the same name. Rename one")
        for sink in participants(sinks, self):
            require_picklable(
                sink,
                f"sink {sink.name!r} cannot be sent to the tasks",
                "Create the sink only with arguments that can be pickled. A function such as kafka.oauth_cb must "
                "create its connections and locks when it is called",
            )
        unknown = sorted(set(self.select) - {sink.name for sink in sinks})
        if unknown:
            raise ConfigurationError(
                f"exactly_once(select=…): there is no sink called {unknown[0]!r}. Use the names of the sinks: {', '.join(names)}"
            )


def _copied(select: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Copy the mapping, because a change to the user's mapping between two calls for a batch would change the rows."""
    if not isinstance(select, Mapping):
        raise ConfigurationError(
            f"exactly_once(select={select!r}): pass a dictionary that maps each sink's name to its SQL expressions, such as "
            "{'orders': ['id AS key', 'to_json(struct(*)) AS value']}"
        )
    for name, expressions in select.items():
        if isinstance(expressions, str) or not isinstance(expressions, Sequence) or not expressions:
            raise ConfigurationError(
                f"exactly_once(select={{{name!r}: {expressions!r}}}): pass a list of SQL expressions, such as "
                "['id AS key', 'to_json(struct(*)) AS value']"
            )
    return {name: list(expressions) for name, expressions in select.items()}


def require_picklable(one: object, problem: str, advice: str) -> None:
    """Check that an object can be sent to another process.

    Args:
        one: the object.
        problem: the text to report if the object cannot be sent.
        advice: how to correct the problem.

    Raises:
        ConfigurationError: the object cannot be pickled.
    """
    try:
        cloudpickle.dumps(one)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(f"exactly_once(): {problem} ({type(error).__name__}: {error}). {advice}") from error


def participants(sinks: Sequence[TwoPhaseCommitSink[Any]], options: Options) -> tuple[TwoPhaseCommitSink[Any], ...]:
    """Return all sinks that take part in the decision, with the dead-letter sink last."""
    return (*sinks, options.dead_letter) if options.dead_letter is not None else tuple(sinks)
