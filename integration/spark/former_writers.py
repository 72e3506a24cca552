"""Find the batches that a query finished before this toolkit wrote for it. These batches have no decision.

Spark's own sink, or the query from which a checkpoint was restored, wrote these batches. The checkpoint records this case:
``twopc savepoint restore`` leaves a note, and ``twopc migrate cutover`` leaves a hand-over. ``AdoptQuery`` leaves no file. It
leaves a begin record in the decision log.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.errors import ConfigurationError
from twopc.integration.spark.checkpoint import decoding, planning_time_ms, require_planned
from twopc.integration.spark.handed_over import newest_handover
from twopc.sealed import unseal

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.batch import Batch
    from twopc.files import Files

logger = logging.getLogger(__name__)

#: The name of the note, in the toolkit's directory of a restored checkpoint.
NOTE: Final = "restored.json"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a restored checkpoint, written into that checkpoint.

    Attributes:
        batch_id: the last batch that the former query wrote.
    """

    savepoint: str
    former_query_id: str
    batch_id: int


def last_former_batch(own: Files, query_id: str) -> int | None:
    """Return the last batch that another writer finished, according to the checkpoint.

    Args:
        own: the directory ``<checkpoint>/twopc``.
        query_id: the checkpoint's query.

    Returns:
        the batch. The result is -1 if the checkpoint names no other writer. It is None if a rollback has returned the
        checkpoint to the old sink, because the old sink may have written any number of batches since then.

    Raises:
        ConfigurationError: the note or the hand-over cannot be read.
    """
    restored, found = _restored_batch(own), newest_handover(own)
    if found is None:
        return restored
    _, handover = found
    if handover.query_id != query_id:
        return restored
    return None if handover.is_back else max(restored, handover.last_finished)


def last_expected(log: str, decided: int | None, *, bound: str | None, former: int | None) -> int | None:
    """Return the last batch that the query may have finished; None if the log does not show it.

    Args:
        log: the name of a decision log. The log is not open for another query.
        decided: the last batch of the query that was decided in the log; None if none was decided.
        bound: the log to which the checkpoint is bound; None if the checkpoint is unbound.
        former: the last batch that another writer finished; see :func:`last_former_batch`.
    """
    # The checkpoint is bound before the first decision. So if a log is empty, its sink has not joined the query yet, unless the
    # checkpoint is unbound or bound to this very log.
    if decided is None and bound not in {None, log}:
        return None
    # After a rollback, the old sink continues to write. A second cut-over is then ahead of the query's last decision.
    return former if decided is None or former is None else max(decided, former)


def require_adoptable(files: Files, batch: Batch, decided: Callable[[], int | None]) -> None:
    """Before a query is adopted, check that the former writer recorded its rows, as far as the checkpoint shows this.

    Args:
        files: the checkpoint.
        batch: the batch with which the run begins.
        decided: finds the last batch that this query has decided; None if it has decided none.

    Raises:
        ConfigurationError: the former writer wrote the previous batch with a continuous trigger.
    """
    if batch.batch_id == 0 or batch.offsets_of(batch.batch_id - 1) is None:
        return
    try:
        require_planned(files, batch.batch_id - 1)
    except ConfigurationError:
        # The override may stay in the code after the adoption. Raise the error only if the previous batch is newer than this
        # query's last decision, because only then has the former writer written that batch.
        last = decided()
        if last is None or last < batch.batch_id - 1:
            raise


def warn_of_adoption(files: Files, own: Files, batch: Batch) -> None:
    """Log the time when Spark planned an adopted query's first batch, unless the checkpoint says that the batch has not begun.

    If the batch is older than this run, the former writer may have begun it. But an earlier start of this query may also have
    failed in the batch, and nothing tells the two cases apart.

    Args:
        files: the checkpoint.
        own: the directory ``<checkpoint>/twopc``.
        batch: the batch, which no start has written yet.

    Raises:
        ConfigurationError: the checkpoint cannot be read.
    """
    if last_former_batch(own, batch.query_id) == batch.batch_id - 1:
        return
    planned = datetime.fromtimestamp(planning_time_ms(files, batch.batch_id) / 1000, tz=timezone.utc)
    logger.warning(
        "override=AdoptQuery(%r) begins with batch %d, which Spark planned at %s. The sinks write the complete batch. If another "
        "writer has already written some of its rows, these rows will be in the output twice. To prevent this, let that writer "
        "finish its last batch before the first start",
        batch.query_id,
        batch.batch_id,
        planned.isoformat(timespec="seconds"),
    )


def _restored_batch(own: Files) -> int:
    data = own.read(NOTE)
    if data is None:
        return -1
    with decoding(own, NOTE):
        return unseal(data, Note).batch_id
