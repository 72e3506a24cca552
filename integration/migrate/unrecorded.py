"""Check that the old query's checkpoint records every row that the query has written.

A query with micro-batches writes ``commits/N`` after the last row of batch N, and then plans batch N + 1 before its first row. In
real-time mode and with a continuous trigger, Spark records a batch only after its rows, so each stop leaves rows that no file
records. With asynchronous progress tracking, Spark records only some batches.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError
from twopc.integration.migrate.handover import Bounds
from twopc.integration.migrate.output import records_of

if TYPE_CHECKING:
    from twopc.integration.migrate.handover import Handover
    from twopc.integration.migrate.place import DatedFiles
    from twopc.sinks.kafka import KafkaSink

#: How to stop using asynchronous progress tracking. Without the first step, Spark refuses to start, because it needs the last
#: two batches.
ASYNCHRONOUS: Final = (
    "keep asyncProgressTrackingEnabled, set asyncProgressTrackingCheckpointIntervalMs to 0, start the old query, and let it "
    "finish two batches. Then stop it, remove both options, and let it finish another batch"
)
#: An object store keeps the times of its files in whole seconds.
_SECOND_MS: Final = 1000


def finished_ms(files: DatedFiles, batch_id: int) -> int:
    """Return when Spark recorded a batch as done, in ms since 1970 UTC. No later record of the output is from this batch.

    Args:
        files: the checkpoint.
        batch_id: the last finished batch; -1 if no batch is finished. In that case, no row may be newer than the checkpoint.
    """
    at = files.modified_ms(_record_of(batch_id)) or 0
    return at + _SECOND_MS if at % _SECOND_MS == 0 else at + 1


def require_all_recorded(files: DatedFiles, handover: Handover, sink: KafkaSink) -> None:
    """Check that the output contains no record from after the last finished batch.

    Args:
        files: the checkpoint.
        handover: the hand-over of a finished batch, whose bounds begin at the time of :func:`finished_ms`.
        sink: describes the cluster.

    Raises:
        ConfigurationError: there is such a record, or the checkpoint's file has vanished.
        TwoPhaseCommitError: the output cannot be read.
    """
    after = {
        topic: {number: Bounds(start=at.exact, exact=at.exact, end=at.end) for number, at in partitions.items()}
        for topic, partitions in handover.topics.items()
    }
    # A transaction's end markers may be newer than the batch, so only a record counts.
    found = next(records_of(sink, msgspec.structs.replace(handover, topics=after)), None)
    if found is None:
        return
    topic, message = found
    name = _record_of(handover.batch_id)
    at = datetime.fromtimestamp((files.modified_ms(name) or 0) / 1000, tz=timezone.utc)
    raise ConfigurationError(
        f"{topic}[{message.partition()}] contains a record, at offset {message.offset()}, that was written after "
        f"{files.location}/{name} ({at.isoformat(timespec='milliseconds')}). So the old query may have written rows that its "
        "checkpoint does not record, and the new query would write them again. Nothing was done. First compare the newest "
        "record of each partition with the rows of the last finished batch. There are four possible causes. (1) The old "
        "query used real-time mode, trigger(continuous=…) or asyncProgressTrackingEnabled. In these modes, every stop may "
        f"leave unrecorded rows. With asyncProgressTrackingEnabled, {ASYNCHRONOUS}. In the other two modes, start the old query "
        "with trigger(availableNow=True), and wait until it ends. As after every restart, the old query writes the unrecorded "
        "rows again. In all three modes, then run this command again. (2) The old query used none of these modes, and the newest "
        "record of each partition is from the last finished batch. In this case, the query sets timestamps, or the clock of a "
        "producer or a broker is ahead of the clock of the checkpoint's file system, even if only by milliseconds. "
        "Use --start-offsets to pass the partitions' end offsets. (3) A record is from a later batch, because this checkpoint "
        "is an older copy. Pass the newest checkpoint. (4) Other programs write to the topic. Pass --other-writers"
    )


def _record_of(batch_id: int) -> str:
    return "metadata" if batch_id < 0 else f"commits/{batch_id}"
