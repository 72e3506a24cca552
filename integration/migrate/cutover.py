"""Find the batch that the old sink may have partly written, and record the hand-over (``twopc migrate cutover``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from twopc.binding import Binding
from twopc.counted import counted
from twopc.errors import ConfigurationError
from twopc.integration.migrate.deciding import UnreadDecisionsError, decided_by, sinks_of
from twopc.integration.migrate.handover import Bounds, Handover, Handovers, Kind
from twopc.integration.migrate.output import Tally, bounds_of, has_record_since, tally
from twopc.integration.migrate.skipped import require_none_skipped
from twopc.integration.migrate.unrecorded import ASYNCHRONOUS, finished_ms, require_all_recorded
from twopc.integration.spark.checkpoint import (
    numbers,
    offsets_by_source,
    planning_time_ms,
    query_id,
    require_planned,
    source_offsets,
)
from twopc.integration.verify.expressions import parse
from twopc.integration.verify.sources import kafka_ends

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twopc.files import Files
    from twopc.integration.migrate.place import Place
    from twopc.sinks.kafka import KafkaSink


@dataclass(frozen=True, kw_only=True)
class Cutover:
    """The options of a cut-over: the topics to hand over, and the means to recognize the batch's rows.

    Attributes:
        topics: the output topics.
        key, clock_skew_ms, other_writers: see :class:`Handover`.
        starts: by topic and partition, the lowest offset that any of the batch's rows may have. If this mapping is empty,
            the offsets are found by timestamp.
        old_query_finished: the last finished batch, if the user says that the old query has written every batch up to this one;
            None if the user does not say this.
    """

    topics: Sequence[str]
    key: str | None = None
    clock_skew_ms: int = 60_000
    other_writers: bool = False
    starts: Mapping[str, Mapping[int, int]]
    old_query_finished: int | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of a dry run.

    Attributes:
        handover: the hand-over to record.
        source_records: the number of the batch's records from Kafka sources; None if the query has other sources.
        tally: the record counts within the hand-over's bounds.
        was_recorded: whether this hand-over is already in effect.
    """

    handover: Handover
    source_records: int | None
    tally: Tally
    was_recorded: bool


def find(wanted: Cutover, place: Place, sink: KafkaSink) -> Found:
    """Examine the checkpoint and the output, and write nothing.

    Raises:
        ConfigurationError: the checkpoint cannot be taken over, or an argument is wrong. The message says why.
        TwoPhaseCommitError: the output cannot be read.
    """
    files = place.files
    key = None if wanted.key is None else parse(wanted.key)
    batch_id, is_finished = last_batch(files)
    begun = Handover(
        query_id=query_id(files),
        batch_id=batch_id,
        offsets=source_offsets(files, batch_id) or (),
        kind=Kind.NOTHING if is_finished else Kind.REST,
    )
    last = Handovers(place.own).newest()
    decided = _require_not_begun(begun, last, place, sink)
    _require_same_plan(begun, last)
    finished = batch_id - (not is_finished)
    require_none_skipped(place, last, begun.query_id, finished, decided, told=wanted.old_query_finished)
    if batch_id >= 0:
        require_planned(files, batch_id)
    if unnamed := wanted.starts.keys() - set(wanted.topics):
        raise ConfigurationError(
            f"--start-offsets names {', '.join(sorted(unnamed))}, but --topic does not. Nothing was done. Correct one of the "
            "two options"
        )
    since_ms = finished_ms(files, batch_id) if is_finished else planning_time_ms(files, batch_id)
    topics = {
        topic: bounds_of(sink, topic, since_ms, wanted.clock_skew_ms, wanted.starts.get(topic))
        for topic in wanted.topics
    }
    if is_finished:  # only the ends of the bounds matter, because no program may write beyond them
        if not wanted.other_writers:
            require_all_recorded(files, msgspec.structs.replace(begun, topics=topics), sink)
        ended = msgspec.structs.replace(begun, topics=_ends(topics), other_writers=wanted.other_writers)
        return _found(ended, last, None, Tally())
    handover = msgspec.structs.replace(
        begun,
        topics=topics,
        key=wanted.key,
        planned_ms=since_ms,
        clock_skew_ms=wanted.clock_skew_ms,
        other_writers=wanted.other_writers,
    )
    by_time = {topic: bounds for topic, bounds in topics.items() if topic not in wanted.starts}
    _require_records_of_the_batch_before(files, handover, by_time, sink)
    tallied = tally(sink, handover, key)
    for topic in by_time:
        if undated := tallied.undated[topic]:
            raise ConfigurationError(
                f"In {topic}, {counted(undated, 'record comes', 'records come')} after the batch's first offset but "
                f"{'has a timestamp' if undated == 1 else 'have timestamps'} from before the batch. Therefore, "
                "timestamps do not show where the batch begins (does the query set a timestamp column?). Nothing was "
                "done. Use --start-offsets to pass, for each topic, the offsets at which the last finished batch ends"
            )
    return _found(handover, last, _source_records(files, batch_id), tallied)


def record(found: Found, place: Place) -> str:
    """Put the hand-over into effect, and return its file. A second call changes nothing.

    Raises:
        ConfigurationError: the file cannot be written, or another process is recording a hand-over.
    """
    return Handovers(place.writable()).add(found.handover)


def last_batch(files: Files) -> tuple[int, bool]:
    """Return the last batch that Spark has planned, or -1, and whether Spark has recorded that batch as done.

    Raises:
        ConfigurationError: more than one batch is unfinished, commits/ is ahead of offsets/, or the batch before the last one is
            not in offsets/. In each case, it is unknown which batches are in the output.
    """
    offsets, commits = (numbers(files, directory) for directory in ("offsets", "commits"))
    planned, noted = max(offsets, default=-1), max(commits, default=-1)
    if planned not in {noted, noted + 1}:
        raise _incomplete(
            files,
            f"Spark has planned batch {planned} and recorded batch {noted} as done. At most one batch may be unfinished",
        )
    # Spark always keeps the last two offsets files. However, with asyncProgressTrackingEnabled, it writes no file for
    # some batches.
    if planned > 0 and planned - 1 not in offsets:
        raise _incomplete(
            files,
            f"offsets/ contains batch {planned} but not batch {planned - 1}. So the output may contain batches that are "
            "missing from the checkpoint",
        )
    return planned, planned == noted


def _incomplete(files: Files, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{files.location}: {what}. Either files are missing, or asyncProgressTrackingEnabled is set, in which case Spark "
        f"records only some batches. Nothing was done. If files are missing, restore them. If the option is set, {ASYNCHRONOUS}. "
        "Then run this command again"
    )


def _require_not_begun(begun: Handover, last: Handover | None, place: Place, sink: KafkaSink) -> int | None:
    """Check that the new query has not decided this batch. Otherwise, new bounds would also contain the new query's rows.

    Returns:
        the last batch that the new query has decided; None if it has decided none, or if its decisions do not matter.

    Raises:
        ConfigurationError: the new query has decided the batch, or it is unknown which batches it has decided.
        TwoPhaseCommitError: the query's decisions cannot be read.
    """
    # A query binds its sinks before its first decision. So without a binding, the query has decided nothing, and the command
    # needs no permission on the ledger.
    if _is_handed_over(begun, last) or not Binding(place.own).sinks:
        return None
    query, batch_id = begun.query_id, begun.batch_id
    try:
        decided = decided_by(query, sink, sinks_of(query, sink, place.own).here)
    except UnreadDecisionsError as error:
        raise ConfigurationError(
            f"the new query stores its decisions in a ledger that is not on the Kafka cluster {sink.bootstrap_servers}. So "
            f"it is unknown whether that query has decided batch {batch_id}. Nothing was done. Start the query that ran "
            "last, wait until every batch is finished, and stop it. Then run `twopc migrate rollback`, and then this "
            "command again"
        ) from error
    if decided is None or decided < batch_id:
        return decided
    if decided > batch_id:
        raise ConfigurationError(
            f"the new query has already decided batch {decided}, but the checkpoint ends at batch {batch_id}, so the "
            "checkpoint is an older copy. Nothing was done. Use the newest checkpoint"
        )
    raise ConfigurationError(
        f"Batch {batch_id} cannot be handed over, because the new query has already decided this batch. The range of a new "
        "hand-over would also contain the new query's rows. Nothing was done. No data is at risk. Start the new query. It "
        "will complete the batch if the batch is unfinished. If the new query requires another hand-over, run `twopc "
        "migrate rollback`, and then this command again. To return to the old query, run only `twopc migrate rollback`"
    )


def _require_same_plan(begun: Handover, last: Handover | None) -> None:
    """Check that Spark has not planned an unfinished, handed-over batch again: see :meth:`Handover.require_plan`."""
    if last is not None and last.is_about(begun.query_id, begun.batch_id) and begun.kind is Kind.REST:
        last.require_plan(begun.offsets)


def _is_handed_over(begun: Handover, last: Handover | None) -> bool:
    """Whether the newest hand-over already shows that the new query's rows of this batch do no harm.

    A rollback says which part of the batch is in the output. If both the new hand-over and the last one say that the batch is
    finished, they name the same rows.
    """
    if last is None or last.batch_id != begun.batch_id:
        return False
    return last.is_back or last.kind is begun.kind is Kind.NOTHING


def _require_records_of_the_batch_before(
    files: Files, handover: Handover, topics: Mapping[str, Mapping[int, Bounds]], sink: KafkaSink
) -> None:
    """Check that timestamps can show where the batch begins.

    The output must contain a record from the time of the previous batch or later.

    Args:
        files: the checkpoint.
        handover: the hand-over of an unfinished batch.
        topics: the bounds that were found by time.
        sink: describes the cluster.

    Raises:
        ConfigurationError: there is no such record.
    """
    before = handover.batch_id - 1
    if not topics or not _had_input(files, before):
        return
    since_ms = planning_time_ms(files, before) - handover.clock_skew_ms
    if any(has_record_since(sink, topic, bounds, since_ms) for topic, bounds in topics.items()):
        return
    raise ConfigurationError(
        f"Batch {before} had input, but no record in {', '.join(topics)} has a timestamp from the time of that batch or "
        "later. So timestamps do not show where the last batch begins. Perhaps the query sets the timestamps itself, batch "
        f"{before} wrote no rows, or Kafka has already deleted the batch's rows (retention). Nothing was done. Use "
        f"--start-offsets to pass, for each topic, the offsets at which batch {handover.batch_id} begins. If batch "
        f"{handover.batch_id} wrote no rows either, pass the partitions' end offsets"
    )


def _had_input(files: Files, batch_id: int) -> bool:
    """Return whether a batch had source records. If the source reports no count, check whether its offsets have changed."""
    count = _source_records(files, batch_id)
    if count is None:
        return batch_id > 0 and source_offsets(files, batch_id) != source_offsets(files, batch_id - 1)
    return count > 0


def _ends(topics: dict[str, dict[int, Bounds]]) -> dict[str, dict[int, Bounds]]:
    return {
        topic: {number: Bounds(start=at.end, exact=at.end, end=at.end) for number, at in partitions.items()}
        for topic, partitions in topics.items()
    }


def _found(handover: Handover, last: Handover | None, source_records: int | None, tallied: Tally) -> Found:
    return Found(handover=handover, source_records=source_records, tally=tallied, was_recorded=last == handover)


def _source_records(files: Files, batch_id: int) -> int | None:
    """Use the batch's offsets to count the batch's records. Return None if a source is not Kafka."""
    ends, starts = (offsets_by_source(files, number) or {} for number in (batch_id, batch_id - 1))
    count = 0
    for source, line in ends.items():
        end, start = kafka_ends(line), kafka_ends(starts.get(source) or _initial(files, source))
        if end is None or start is None:
            return None
        count += sum(offset - start.get(where, 0) for where, offset in end.items())  # a new partition begins at 0
    return count


def _initial(files: Files, source: str) -> bytes:
    """Return a Kafka source's first offset. Spark keeps it in ``sources/<source>/0``."""
    _, _, text = (files.read(f"sources/{source}/0") or b"").partition(b"\n")
    return text or b"{}"
