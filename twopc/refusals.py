"""Messages for a refused start: what happened, whether data is at risk, and every way to continue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from twopc.batch import Position
from twopc.errors import DecisionLogDamagedError, RefusedStartError
from twopc.new_checkpoint import FROM_MISSING, LAST_VISIBLE, NEW_NAME, begun, last_decided, new_checkpoint
from twopc.override import AdoptQuery, EndQuery, ResumeAt
from twopc.recovery import REFUSALS
from twopc.unproven import abandon, way_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twopc.batch import Batch
    from twopc.log_view import LogView
    from twopc.override import Overrides
    from twopc.records import Decision
    from twopc.times import Times

#: The case of a start that is refused because the log has lost a record: a decision or a repair.
LOST_DECISION: Final = "lost decision"
#: The case of a start that is refused because it does not pass all sinks of the last decided batch.
SINK_LEFT_OUT: Final = "sink left out"
#: Spark cannot write a file into a local directory again, if the old file's checksum is still there.
_CHECKSUMS: Final = "With each file, also delete its checksum file .<number>.crc, if there is one. "
#: This sentence ends the message of a refused start, because a refused start recovers nothing, and a restart alone does not
#: help.
DEADLINE: Final = (
    "Act soon: decided transactions that are not yet committed will expire (kafka.transaction.timeout.ms), and their "
    "rows will then be lost"
)


def refused(position: Position, view: LogView, batch: Batch, log: str, overrides: Overrides) -> Exception:
    """Build the error for a start, with these overrides, that the recovery table refuses."""
    return damaged(view, log) if view.damage is not None else refusal(position, view, batch, log, overrides)


def refusal(position: Position, view: LogView, batch: Batch, log: str, overrides: Overrides) -> RefusedStartError:
    """Build the error for a batch position that the recovery table refuses."""
    at, highest, mine = batch.batch_id, view.highest_batch, batch.query_id
    other = view.begin.query_id if view.begin else None
    missing = 0 if highest is None else highest + 1  # the first batch of the gap
    ending = overrides.in_code(EndQuery(other or ""))
    found = None if highest is None else batch.times_of(highest)
    again = new_checkpoint(batch, mine, last_decided(mine, view, log))
    texts = {
        Position.REWOUND: (
            f"the checkpoint is at batch {at}, but {log} already contains the decision for batch {highest}. An older "
            "checkpoint was restored, or another run used a copy of the checkpoint. Continuing would write batches "
            f"{at} to {highest} twice. Restore the newest checkpoint, or {again}"
        ),
        Position.COPIED: (
            f"the source offsets in this checkpoint (at batch {at}) differ from the offsets that {log} recorded for "
            f"batch {highest}. The checkpoint was copied or restored, and another run continued from it. Continuing "
            f"would lose or duplicate records. Use the checkpoint of the run that wrote last, or {again}"
        ),
        Position.PLANNED_AGAIN: (
            f"the checkpoint's plan of batch {highest} is newer than the plan in {log}. The source offsets are the same, but the "
            f"times are {_in_spark(found)} instead of {_in_spark(view.highest_times)}. The checkpoint had lost the file "
            f"offsets/{highest}, for example because an older copy was restored, so Spark planned the batch again. The "
            "query keeps state. With the new plan, its state would no longer match its visible rows, and rows of timers could be "
            "lost. To finish the batch as it was decided, stop the query, and write "
            f"{_in_spark(view.highest_times)} into the second line of the file offsets/{highest}. Then delete three things: the "
            f"file offsets/.{highest}.crc if it exists, all files in offsets/ with numbers above {highest}, and all files in "
            f"commits/ with the number {highest} or above. {_CHECKSUMS}{_newer_state(highest or 0, batch.keeps_state)}Then "
            f"restart. Or {again}"
        ),
        Position.GAP: (
            f"the checkpoint is at batch {at}, but {log} expects batch {missing}. From batch {missing} on, the function "
            "either did not call the exactly_once object, or caught the object's error and returned. Another possible cause is "
            "that the log was replaced. Call the object for every batch, even if the batch is empty, and let its errors stop the "
            "query. If the missed batches have no rows for this sink, or were written by other means, pass "
            f"{overrides.in_code(ResumeAt(at, mine))}. Otherwise, rows are missing, so have the engine run these batches again. "
            f"With Spark, {run_again(missing, batch.keeps_state)}Then fix the function, and restart. Do the same if the query "
            "keeps state (dropDuplicates, windows, stream-stream joins) and the function did not evaluate all of these batches. "
            "Their state is missing, and ResumeAt does not restore it"
        ),
        Position.SET_BACK: (
            f"the checkpoint is at batch {at}, but {log} expects batch {missing}. In between, the sources went back to "
            f"their offsets before batch {highest}. {log} already contains the decision for batch {highest}, so continuing would "
            "write the rows of this batch twice. The cause may be Spark's offline repartition of the state with "
            "enforceExactlyOnceSink=false. If the last batch is unfinished, this repartition skips the batch, and Spark later "
            "reads the batch's input again. Restore the checkpoint from before the repartition, let the query finish its last "
            f"batch, and repartition with enforceExactlyOnceSink=true. If there is no backup, {again}"
        ),
        Position.NEW_QUERY: (
            f"{log} belongs to query {other}, but this is query {mine}. Either this start uses a new checkpoint, which "
            "gave the query a new id, or two queries use the same sink name. (Spark creates a new checkpoint if the "
            "old one was deleted, or if the query's checkpointLocation is missing or has changed.) If the old "
            f"checkpoint still exists, set the query's checkpointLocation to it, and restart. If query {other} has "
            f"ended permanently, pass all of that query's sinks and {ending}. This start then completes that query's last "
            f"batch. If it has not ended, rename this sink{begun(batch, other or '', view)}"
        ),
        Position.UNADOPTED: (
            f"the checkpoint is at batch {at}, but {log} contains no record of the earlier batches. If another writer wrote "
            f"them, that writer must not have begun batch {at}, because this sink will write all of batch {at}. To make sure, "
            "start that writer again with trigger(availableNow=True), and wait until it ends. Then the newest files in "
            "offsets/ and commits/ must have the same number. "
            "These numbers prove nothing in real-time mode, with trigger(continuous=…) or with "
            "asyncProgressTrackingEnabled. In these cases, let that writer first finish a batch without these modes "
            "(docs/migration.md). If the output is in Kafka, this sink can also take over a half-written batch "
            f"(`twopc migrate cutover`). Then pass {overrides.in_code(AdoptQuery(mine))}. If the sink was renamed, restore its "
            "previous name. If the function did not call the exactly_once object for these batches, fix the function, and "
            f"{FROM_MISSING}. This sink has written nothing yet"
        ),
        Position.ENDED: (
            f"query {mine} was ended in {log} when query {other} replaced it. The ended query's checkpoint must not be "
            f"used again. Use a new checkpoint and a new sink name. Or, if query {other} has ended, too, "
            f"{new_checkpoint(batch, other or '', last_decided(other or '', view, log))}"
        ),
    }
    return RefusedStartError(f"{REFUSALS[position]}: {texts[position]}. Nothing was written", case=position.value)


def run_again(first: int, keeps_state: Callable[[], bool]) -> str:
    """Name the files to delete, so that Spark runs the finished batches from ``first`` on again.

    The offsets of ``first`` stay. So Spark replays this batch as planned, and plans only the later ones anew.
    """
    return (
        f"delete the files with numbers above {first} from the checkpoint's offsets/ directory, and the files with numbers above "
        f"{first - 1} from its commits/ directory. {_CHECKSUMS}{_newer_state(first, keeps_state)}"
    )


def _newer_state(batch_id: int, keeps_state: Callable[[], bool]) -> str:
    """Name the state that must be deleted before Spark runs a batch again and plans the later batches anew.

    Batch N writes version N + 1. Spark overwrites the later versions' changes, but not their snapshots, and could load an old
    snapshot after a restart (``HDFSBackedStateStoreProvider.loadMap``, ``RocksDBFileManager.getLatestSnapshotVersion``).
    """
    if not keeps_state():
        return ""
    return (
        f"In state/, at any depth, also delete the files whose names begin with a number above {batch_id}, except in directories "
        "whose names begin with an underscore. Otherwise, Spark may later load the state that these batches have left there. "
    )


def _in_spark(times: Times | None) -> str:
    """Write the times as Spark writes them into ``offsets/N``."""
    if times is None:
        return "unknown"
    names = {"batchWatermarkMs": times.watermark_ms, "batchTimestampMs": times.timestamp_ms}
    return json.dumps(names, separators=(",", ":")).strip("{}")


def lost_decision(  # noqa: PLR0913 - the facts
    log: str, sink: str, batch: Batch, overrides: Overrides, *, highest: int | None, resume_at: int | None
) -> RefusedStartError:
    """Build the error for a start, with these overrides, whose log has lost the decision for a visible batch.

    ``highest`` is the highest batch in the log. ``resume_at`` is the batch at which the query may continue; None if only a
    new checkpoint helps.
    """
    missing = batch.batch_id if highest is None else highest + 1
    if resume_at is None or resume_at == missing + 1:
        whose, rows, check = f"the decision for batch {missing}", f"batch {missing}", f"batch {missing}"
    else:
        whose = f"the decisions for batches {missing} to {resume_at - 1}"
        rows, check = f"batch {missing} or of a later batch", f"batches {missing} to {resume_at - 1}"
    if resume_at is None:
        whose, rows = f"{whose}, and possibly later ones", f"batch {missing} or of a later batch"
        check = f"batch {missing} and later batches"
        way_out = (
            f"The checkpoint is at batch {batch.batch_id} and cannot continue, so "
            f"{new_checkpoint(batch, batch.query_id, LAST_VISIBLE)}"
        )
    else:
        way_out = f"Then restart with {overrides.in_code(ResumeAt(resume_at, batch.query_id))}"
    return RefusedStartError(
        f"lost decision: {log} has lost {whose}. Sink {sink!r} shows rows of {rows}, and a decision always comes before "
        "its rows. Brokers lose acknowledged records after an unclean leader election, or if the only replica is lost. "
        f"The visible rows stay visible. Do not run {check} again, because this would duplicate visible rows. Check "
        f"the rows of {check} in the output, because the last driver may have stopped before all of them were visible. Write "
        f"missing rows by other means. {way_out}. Nothing was written",
        case=LOST_DECISION,
    )


def lost_record(log: str, sink: str, decision: Decision, overrides: Overrides) -> RefusedStartError:
    """Build the error for a start, with these overrides, whose log has lost a later record of its last decided batch."""
    batch_id = decision.batch_id
    return RefusedStartError(
        f"lost decision: {log} has lost a later record of batch {batch_id}: a repair, or a new decision after a loss. Sink "
        f"{sink!r} shows rows of this batch that no record in the log lists. Brokers lose acknowledged records after an unclean "
        "leader election, or if the only replica is lost. The visible rows stay visible. Writing the batch's lost rows again "
        "would duplicate some of them. Now "
        f"{way_out(decision, [], overrides)}. Nothing was written",
        case=LOST_DECISION,
    )


def left_out(log: str, decision: Decision, sinks: Sequence[str], overrides: Overrides) -> RefusedStartError:
    """Build the error for a start, with these overrides, that does not pass all sinks of the last decided batch."""
    batch_id, query_id = decision.batch_id, decision.query_id
    return RefusedStartError(
        f"sink left out: batch {batch_id} of query {query_id} is the last decided batch in {log}. The batch has transactions in "
        f"the sinks {list(sinks)}, but this start does not pass these sinks. So this start cannot tell whether these "
        "transactions are committed. If they are not, their rows would be lost. Pass these sinks again under the same names. To "
        f"leave them out, first start query {query_id} with its own checkpoint and all of its sinks, and stop it when it is "
        "idle. Check with `twopc status` that nothing is left to do. If another query has taken these sinks over, check "
        "the batch's rows there instead, and insert missing rows by other means. Then restart this query with "
        f"{overrides.in_code(abandon(decision, sinks))}. The batch's visible rows stay visible, and the rows that are not "
        "visible in these sinks are abandoned: docs/several-sinks.md#adding-and-removing-a-sink. Nothing was written",
        case=SINK_LEFT_OUT,
    )


def decides_elsewhere(view: LogView, batch: Batch, log: str) -> RefusedStartError:
    """Build the error for a checkpoint that is not bound to the log that contains this query's decisions."""
    query_id = batch.query_id
    return RefusedStartError(
        f"{log} contains the decisions of this query ({query_id}), but the checkpoint is not bound to this log. "
        "The files binding-<n>.json were removed or replaced. Without them, batches could be written twice. Restore them from a "
        "backup of the checkpoint. If there is no backup, pass all of this query's sinks, and "
        f"{new_checkpoint(batch, query_id, last_decided(query_id, view, log))}. Nothing was written",
        case="binding",
    )


def replaced(sink: str, batch: Batch, owner: str) -> RefusedStartError:
    """Build the error for a query that another query has replaced. ``owner`` is the query that owned the sink last."""
    return RefusedStartError(
        f"query ended: query {batch.query_id} was ended when another query replaced it. Sink {sink!r} shows that another "
        "query has decided a batch since this query's last decision. Do not use this query's checkpoint again. The sink does not "
        "keep the evidence that this query's last batch is visible, so writing the batch again could duplicate its rows. "
        f"Use a new checkpoint and a new sink name. Or, if query {owner} has ended, too, "
        f"{new_checkpoint(batch, owner, last_decided(owner, None, ''))}. Nothing was written",
        case=Position.ENDED.value,
    )


def damaged(view: LogView, log: str) -> DecisionLogDamagedError:
    """Build the error for a log that cannot be trusted."""
    return DecisionLogDamagedError(
        f"the decision log {log} is damaged: {view.damage}. Nothing was written, and visible rows stay visible. Without "
        "the log, it is impossible to tell whether the last batch is complete. Restore the log from a backup. If "
        f"there is no backup, check the last batch's rows in the output, then {NEW_NAME}"
    )


def recreated(log: str, offset: int, newest: int) -> DecisionLogDamagedError:
    """Build the error for a log that was recreated while this driver was running."""
    return DecisionLogDamagedError(
        f"the decision log {log} was recreated while the query was running. A new record is at offset {offset}, but this "
        f"driver had already written a record at offset {newest}. The decisions were deleted with the old log. Visible rows stay "
        "visible, and no further row becomes visible. A restart with this checkpoint will be refused, because the "
        "checkpoint contains the id of the old log. Check the last batch's rows in the output, then "
        f"{NEW_NAME}. Find out who deleted {log}. If your brokers create topics "
        "automatically (auto.create.topics.enable), they may have recreated the topic"
    )
