"""The arguments of ``exactly_once``: what they mean, and which combinations are rejected."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle

from twopc.checkpointing import Checkpointing
from twopc.errors import ConfigurationError
from twopc.integration.spark.direct import WAYS
from twopc.pending import Listener
from twopc.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The least and the most. What bounds the tasks is twice the number in Spark's SQL, which has no longer ones.
_DIRECT_BYTES: Final = (1024, 1 << 62)
_ON_BAD_RECORD: Final = ("stop", "dead_letter")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``exactly_once`` takes besides its sinks.

    Attributes:
        staging: keep each task's rows until its transactions are proven, so that a decided batch whose transactions timed
            out is completed whatever the plan (rule 9).
        staging_location: where; by default beside the checkpoint. A path that the driver and every worker share.
        adopt_query_id: the id of a query that ran before it had this sink; the sink joins at the query's current batch.
        end_query_id: the id of the query that this one replaces under the same sink name.
        resume_at_batch: the batch behind a gap: those before it have no rows for the sinks, or were written in another way.
        abandon_batch: the last decided batch, if nothing can complete it: what is visible of it stays, the rest is given up.
        add_sink: the name of a sink that joins a checkpoint which was bound without it.
        max_attempts: how often a batch is prepared in one checkpoint, where the error may pass.
        tolerable_failed_checkpoints: how many checkpoints may fail in a row, before their decision and for a cause that may
            pass, until the query stops; the batch is then written again. 0 by default, as in Flink.
        min_pause_ms: how long at least from the end of a checkpoint to the trigger of the next. Spark has planned the next batch
            by then, so its rows wait.
        prepare_timeout_ms: when a checkpoint expires: an attempt that is not prepared by then is cancelled. 10 minutes by
            default; None for as long as the sinks' transactions allow, which is a limit in any case.
        select: by sink name, the SQL expressions that make its columns, such as
            ``{"events": ["CAST(id AS STRING) AS key", "to_json(struct(*)) AS value"]}``; others take the batch's own.
        on_bad_record: ``"stop"``: a row that a sink can never take stops the query; nothing of its batch is visible.
            ``"dead_letter"``: no sink is given the row; the sink ``dead_letter`` is given a record about it.
        dead_letter: a sink that takes such records: a KafkaSink with a topic.
        direct: who writes a batch. ``"auto"``: the driver itself, if the batch is expected to fit, else the tasks; one that
            does not fit after all is evaluated again, for the tasks. ``"always"``: the driver. ``"never"``: the tasks.
        num_retained: how many decisions are kept, completed batches included. None: 10, and in any case as many as Spark keeps
            batches (``spark.sql.streaming.minBatchesToRetain``, 100).
        direct_max_bytes: what the driver collects of one DataFrame of a batch with ``"auto"``; 16 MiB by default.
        history: keep what became of each checkpoint beside Spark's checkpoint, for ``twopc history``. None: where the checkpoint
            is a local directory. Elsewhere True writes an object for every hundred checkpoints.
        listeners: are told of each checkpoint; see :class:`twopc.Listener`.
    """

    staging: bool = False
    staging_location: str | None = None
    adopt_query_id: str | None = None
    end_query_id: str | None = None
    resume_at_batch: int | None = None
    abandon_batch: int | None = None
    add_sink: str | None = None
    max_attempts: int = 3
    tolerable_failed_checkpoints: int = 0
    min_pause_ms: float = 0
    prepare_timeout_ms: float | None = 600_000
    select: Mapping[str, Sequence[str]] = field(default_factory=dict)
    on_bad_record: str = "stop"
    dead_letter: TwoPhaseCommitSink[Any] | None = None
    direct: str = "auto"
    num_retained: int | None = None
    direct_max_bytes: int = 16 * 1024 * 1024
    history: bool | None = None
    listeners: Sequence[Listener] = ()

    def __post_init__(self) -> None:
        if self.direct not in WAYS:
            raise ConfigurationError(f"exactly_once(direct={self.direct!r}): give one of {', '.join(map(repr, WAYS))}")
        most, (low, high) = self.direct_max_bytes, _DIRECT_BYTES
        if not isinstance(most, int) or not low <= most <= high:
            raise ConfigurationError(
                f"exactly_once(direct_max_bytes={most!r}): give a number of bytes from {low} to {high}"
            )
        self._check_attempts()
        retained = self.num_retained
        if retained is not None and (type(retained) is not int or retained < 1):
            raise ConfigurationError(f"exactly_once(num_retained={retained!r}): give a number of decisions from 1 on")
        self._check_watching()
        _ = self.checkpointing  # checks its numbers
        if self.on_bad_record not in _ON_BAD_RECORD:
            raise ConfigurationError(
                f"exactly_once(on_bad_record={self.on_bad_record!r}): give one of {', '.join(map(repr, _ON_BAD_RECORD))}"
            )
        if (self.on_bad_record == "dead_letter") != (self.dead_letter is not None):
            raise ConfigurationError(
                'exactly_once(): give on_bad_record="dead_letter" and dead_letter=KafkaSink(…), or neither'
            )
        if self.staging_location is not None and not self.staging:
            raise ConfigurationError("exactly_once(staging_location=…) has no effect without staging=True: give both")
        for name in ("resume_at_batch", "abandon_batch"):
            if not isinstance(getattr(self, name), int | None):
                raise ConfigurationError(f"exactly_once({name}={getattr(self, name)!r}): give a batch number")
        letters = self.dead_letter
        if letters is not None and not (isinstance(letters, TwoPhaseCommitSink) and letters.takes_dead_letters):
            raise ConfigurationError(
                "exactly_once(dead_letter=…): this sink cannot take dead letters: give a KafkaSink with a topic"
            )

    @property
    def checkpointing(self) -> Checkpointing:
        """How checkpoints follow each other.

        Raises:
            ConfigurationError: a number cannot be one.
        """
        return Checkpointing(
            tolerable_failed_checkpoints=self.tolerable_failed_checkpoints, min_pause_ms=self.min_pause_ms
        )

    def _check_attempts(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ConfigurationError(
                f"exactly_once(max_attempts={self.max_attempts!r}): give a number of attempts from 1 on"
            )
        limit = self.prepare_timeout_ms
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < float("inf")
        ):
            raise ConfigurationError(
                f"exactly_once(prepare_timeout_ms={limit!r}): give a number of milliseconds above 0, or None"
            )

    def _check_watching(self) -> None:
        if not isinstance(self.history, bool | None):
            raise ConfigurationError(f"exactly_once(history={self.history!r}): give True, False or None")
        if not all(isinstance(listener, Listener) for listener in self.listeners):
            raise ConfigurationError(
                "exactly_once(listeners=…): give objects of classes that inherit from twopc.Listener"
            )


def checked_options(
    sinks: Sequence[TwoPhaseCommitSink[Any]], checkpoint_location: str, settings: Mapping[str, Any]
) -> Options:
    """Check the arguments of ``exactly_once``, and those of its settings that concern each other."""
    known = sorted(field.name for field in fields(Options))
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ConfigurationError(f"exactly_once({unknown[0]}=…): no such setting; the settings are {', '.join(known)}")
    if not sinks:
        raise ConfigurationError("exactly_once(): give at least one sink")
    if not checkpoint_location.strip():
        raise ConfigurationError("exactly_once(checkpoint_location=''): give the query's checkpointLocation")
    options = Options(**settings)
    names = [sink.name for sink in participants(sinks, options)]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"exactly_once(): two sinks have the same name in {names}; give each its own")
    for sink in participants(sinks, options):
        _require_picklable(sink)
    unknown = sorted(set(options.select) - {sink.name for sink in sinks})
    if unknown:
        raise ConfigurationError(f"exactly_once(select=…): no sink is called {unknown[0]!r}")
    for name, expressions in options.select.items():
        if isinstance(expressions, str) or not expressions:
            raise ConfigurationError(
                f"exactly_once(select={{{name!r}: {expressions!r}}}): give a list of SQL expressions, such as "
                "['id AS key', 'to_json(struct(*)) AS value']"
            )
    return options


def _require_picklable(sink: TwoPhaseCommitSink[Any]) -> None:
    try:
        cloudpickle.dumps(sink)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(
            f"exactly_once(): sink {sink.name!r} cannot be sent to the tasks ({type(error).__name__}: {error}). Give it plain "
            "arguments; a function such as kafka.oauth_cb must open its connections and locks itself, when it is called"
        ) from error


def participants(sinks: Sequence[TwoPhaseCommitSink[Any]], options: Options) -> tuple[TwoPhaseCommitSink[Any], ...]:
    """All sinks that take part in the decision; the one for dead letters is the last."""
    return (*sinks, options.dead_letter) if options.dead_letter is not None else tuple(sinks)
