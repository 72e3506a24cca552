"""Before a handed-over batch is written, remove the rows that are already in the output (``TakeOver``)."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame

from twopc.counted import counted
from twopc.errors import ConfigurationError, FatalError
from twopc.integration.migrate.deciding import decided_by
from twopc.integration.migrate.handover import Handovers, Kind
from twopc.integration.migrate.output import afterward, kept, records_of
from twopc.integration.migrate.rest import Comparison
from twopc.integration.spark import checkpoint
from twopc.integration.spark.hadoop_files import open_files
from twopc.integration.spark.handed_over import checked_once_swept, passing_the_rest
from twopc.integration.spark.interceptors import Interceptor
from twopc.integration.spark.skipped import skipped
from twopc.offsets import is_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from twopc.files import Files
    from twopc.integration.migrate.handover import Handover
    from twopc.integration.migrate.rest import Numbers
    from twopc.integration.spark.interceptors import InterceptedBatch
    from twopc.integration.spark.several import Frames
    from twopc.sinks.kafka import KafkaSink

logger = logging.getLogger(__name__)

_SEVERAL: Final = (
    "Let the old query finish its batch first. Then no batch is handed over, and the new query does not need TakeOver"
)
_AGAIN: Final = "Nothing was written. Run `twopc migrate cutover` again"


class DryRunError(FatalError):
    """The dry run of a hand-over has ended. The message contains the record counts. Nothing was written."""


class TakeOver(Interceptor):
    """Finish a batch that another sink has begun: ``exactly_once(sink, interceptors=[TakeOver(sink)])``.

    After a rollback, wrap the old function: ``intercepted(old_function, TakeOver(sink))``. All other batches stay unchanged.

    Args:
        sink: describes how to reach and read the output.
        dry_run: whether to stop the query at the handed-over batch, report the record counts, and write nothing.
    """

    def __init__(self, sink: KafkaSink, *, dry_run: bool = False) -> None:
        self._sink = sink
        self._dry_run = dry_run
        self._run_id: str | None = None  # the run whose first batch is already visible

    def require_fitting(self, sink_names: Sequence[str]) -> None:
        """See :class:`Interceptor`.

        Raises:
            ConfigurationError: the query writes to several sinks, or to a sink other than this object's sink.
        """
        if tuple(sink_names) != (self._sink.name,):
            raise ConfigurationError(
                f"TakeOver hands a batch over to one sink, {self._sink.name!r}, but exactly_once() was called with "
                f"{', '.join(sink_names)}. TakeOver skips the rows that are already in the output of {self._sink.name!r}, "
                f"so the other sinks would miss these rows. {_SEVERAL}"
            )

    def intercept(self, batch: InterceptedBatch, proceed: Callable[[Frames], None]) -> None:
        """See :class:`Interceptor`.

        Raises:
            DryRunError: ``dry_run`` is set; the message contains the record counts.
            ConfigurationError: the hand-over is missing or is for another batch, or it is unclear which rows the output
                already contains.
            TwoPhaseCommitError: the output cannot be read, or the batch fails.
        """
        if not isinstance(batch.frames, DataFrame):
            raise ConfigurationError(
                f"batch {batch.batch_id} consists of several DataFrames, but TakeOver can compare only one DataFrame with the "
                f"output. Nothing was written. {_SEVERAL}"
            )
        if self._run_id != batch.run_id:
            self._write_first(batch, batch.frames, proceed)
            self._run_id = batch.run_id
        else:
            proceed(batch.frames)

    def _write_first(self, batch: InterceptedBatch, frame: DataFrame, proceed: Callable[[Frames], None]) -> None:
        """Write the first batch of a run, which may be the handed-over batch."""
        batch_id, location = batch.batch_id, batch.checkpoint_location
        files = open_files(batch.context, location)
        handover = Handovers(open_files(batch.context, f"{location}/twopc")).newest()
        if handover is None:
            raise ConfigurationError(
                f"{location} contains no hand-over. Nothing was written. Stop the old query, run `twopc migrate cutover "
                "--apply`, and restart"
            )
        kind = _kind_now(files, handover, batch_id)
        is_watched = False
        if not handover.is_back:
            if not batch.sinks:
                raise ConfigurationError(
                    f"{location} was handed over to exactly_once(), but another function has received batch "
                    f"{batch_id}. exactly_once() may already have written this batch. This call wrote nothing. Stop "
                    "the transactional query, run `twopc migrate rollback`, and restart"
                )
            is_watched = self._is_undecided(handover, batch)
        if kind is Kind.REST:
            self._write_rest(batch, frame, handover, proceed, is_watched=is_watched)
        elif kind is Kind.WHOLE:
            self._end_dry_run(f"all of batch {batch_id} is in the output, so the batch is not written again")
            frame.write.format("noop").mode("overwrite").save()  # a stateful plan must write its state
        else:
            with self._watched(handover, None, is_wanted=is_watched):
                self._end_dry_run(f"no part of batch {batch_id} was handed over, so all of its rows would be written")
                if is_watched and handover.other_writers:
                    logger.warning(
                        "other programs write to %s, so the toolkit cannot check whether the old query has stopped",
                        ", ".join(handover.topics),
                    )
                proceed(frame)

    def _is_undecided(self, handover: Handover, batch: InterceptedBatch) -> bool:
        """Whether the new query has decided no batch since the hand-over. If so, none of the later records is its own.

        Raises:
            ConfigurationError: a batch was skipped.
        """
        decided, first = decided_by(handover.query_id, self._sink, batch.sinks), handover.first_batch
        if decided is not None and decided >= first:
            return False
        if batch.batch_id > first:
            # Without this check, exactly_once() would refuse the batch, but a dry run would not.
            files = open_files(batch.context, batch.checkpoint_location)
            raise ConfigurationError(skipped(first, batch.batch_id - 1, lambda: bool(files.names("state"))))
        return True

    @contextlib.contextmanager
    def _watched(self, handover: Handover, comparison: Comparison | None, *, is_wanted: bool) -> Iterator[None]:
        """Check that no other program has written since the hand-over, now and once more in the body.

        The body's start ends the new query's open transactions. Until then, they hide what the old query has written after them.

        Args:
            handover: the hand-over.
            comparison: if other programs may write, finds their records that are rows of the batch; None if there is nothing to
                compare. In that case, the records of other programs show nothing.
            is_wanted: whether to check at all.

        Raises:
            ConfigurationError: another program has written.
        """

        def check(*, is_swept: bool = True) -> None:
            later = afterward(self._sink, handover, is_swept=is_swept)
            if comparison is not None and handover.other_writers:
                _require_not_written_again(comparison, later)
            else:
                self._require_unwritten(later)

        if not is_wanted or (comparison is None and handover.other_writers):
            yield
            return
        check(is_swept=False)
        with checked_once_swept(check):
            yield

    def _require_unwritten(self, later: Handover) -> None:
        """Check that there is no record within bounds that begin at the hand-over.

        Raises:
            ConfigurationError: a program has written to the topics, and ``--other-writers`` was not set.
        """
        if kept(self._sink, later) != later:
            raise ConfigurationError(
                f"the broker has deleted records that were written to {', '.join(later.topics)} after the hand-over. So "
                f"it is unknown whether the old query is still running. Make sure that the old query has stopped. {_AGAIN}"
            )
        if count := sum(1 for _ in records_of(self._sink, later)):
            raise ConfigurationError(
                f"{counted(count, 'record was', 'records were')} written to {', '.join(later.topics)} since the "
                "hand-over was recorded. Stop the old query, or any other program that still writes to these topics. "
                f"If other programs must continue to write to them, pass --other-writers. {_AGAIN}"
            )

    def _write_rest(
        self,
        batch: InterceptedBatch,
        frame: DataFrame,
        handover: Handover,
        proceed: Callable[[Frames], None],
        *,
        is_watched: bool,
    ) -> None:
        comparison = Comparison(frame, self._sink, handover, batch.select)
        try:
            with self._watched(handover, comparison, is_wanted=is_watched):
                numbers = comparison.numbers()
                text = described(handover.batch_id, numbers)
                _require_clear(handover, numbers, text, comparison.first_offsets)
                self._end_dry_run(text)
                logger.warning("%s", text)
                rest = comparison.rest()
                with passing_the_rest(handover.batch_id, rest):
                    proceed(rest)
        finally:
            comparison.release()

    def _end_dry_run(self, text: str) -> None:
        if self._dry_run:
            raise DryRunError(f"dry run: {text}. Nothing was written")


def described(batch_id: int, numbers: Numbers) -> str:
    """Describe the numbers in a sentence."""
    return (
        f"batch {batch_id} has {counted(numbers.rows, 'row')}: {numbers.already} in the output, {numbers.rest} still "
        f"to be written. Of the output's other records, {numbers.surplus} are duplicates from earlier attempts and "
        f"will stay there, and {numbers.others} are not from the batch"
    )


def _kind_now(files: Files, handover: Handover, batch_id: int) -> Kind:
    """Return the part of this batch that the output already contains, according to the hand-over."""
    found = checkpoint.query_id(files)
    if found != handover.query_id:
        raise ConfigurationError(f"the hand-over is for query {handover.query_id}, but this is query {found}. {_AGAIN}")
    if batch_id > handover.batch_id:
        return Kind.NOTHING
    offsets = checkpoint.read_batch(files, found, batch_id).offsets
    if handover.is_about(found, batch_id):
        handover.require_plan(offsets)
    is_same_batch = is_same(handover.offsets, offsets)
    if batch_id < handover.batch_id or not is_same_batch or handover.kind is Kind.NOTHING:
        raise ConfigurationError(
            f"the hand-over is for batch {handover.batch_id}, but Spark passes batch {batch_id}. This batch has different "
            "source offsets, or was already finished. Either the checkpoint was restored from a copy, or its query has run "
            f"since the hand-over. {_AGAIN}"
        )
    return handover.kind


def _require_not_written_again(comparison: Comparison, later: Handover) -> None:
    """Check that no row of the batch was written after the hand-over.

    Raises:
        ConfigurationError: such a record exists, so the old query is still running.
    """
    if again := comparison.written_again(later):
        raise ConfigurationError(
            f"{counted(again, 'record identical to a row', 'records identical to rows')} of batch {later.batch_id} "
            f"{'was' if again == 1 else 'were'} written after the hand-over was recorded, so the old query may still "
            f"be running. Make sure that the old query and its executors have stopped. {_AGAIN}"
        )


def _require_clear(
    handover: Handover, numbers: Numbers, text: str, first_offsets: Callable[[], dict[str, dict[int, int]]]
) -> None:
    """Check that the numbers clearly show which rows are in the output.

    Args:
        handover: the hand-over.
        numbers: the numbers.
        text: the numbers, worded as a sentence.
        first_offsets: see :meth:`Comparison.first_offsets`.

    Raises:
        ConfigurationError: the numbers are not clear. The message says which option to change.
    """
    problems = []
    if numbers.unidentified:
        problems.append(
            f"{counted(numbers.unidentified, 'row has', 'rows have')} no {handover.key}, so choose a different --key, "
            "or omit --key"
        )
    if numbers.elsewhere:
        problems.append(
            f"{counted(numbers.elsewhere, 'row goes', 'rows go')} to topics that were not handed over, so add these topics with "
            "--topic"
        )
    if numbers.ambiguous:
        problems.append(
            f"{counted(numbers.ambiguous, 'value')} of {handover.key} belong{'s' * (numbers.ambiguous == 1)} to "
            "different rows, so choose a --key that is unique"
        )
    if numbers.unclear:
        problems.append(
            f"{counted(numbers.unclear, 'row matches', 'rows match')} records that were written up to "
            f"{handover.clock_skew_ms} ms before the batch was planned, but match{'es' * (numbers.unclear == 1)} no "
            "later record. If all clocks agree, these records are from an earlier batch. In that case, pass "
            "--clock-skew-ms 0. But if a producer's clock is behind the driver's clock, the records may be from "
            "this batch. If you know that no earlier batch contains rows "
            f"with the same {handover.key or 'content'}, pass --start-offsets '{json.dumps(first_offsets())}'"
        )
    if numbers.others and not handover.other_writers:
        problems.append(
            f"{counted(numbers.others, 'record does', 'records do')} not match any row of the batch. If the new query's "
            "rows differ from the old query's rows (because they contain a time or a random number), pass a --key. "
            "If other programs write to the topics, pass --other-writers"
        )
    if problems:
        raise ConfigurationError(
            f"{text}. It is unclear which of the batch's rows are already in the output: {'; '.join(problems)}. {_AGAIN}"
        )
