"""Find the batches that a query finished before this toolkit wrote for it. Nothing has decided these batches.

Spark's own sink, or the query from which a checkpoint was restored, wrote these batches. The checkpoint records this case:
``twopc savepoint restore`` leaves a note, and ``twopc migrate cutover`` leaves a hand-over. ``AdoptQuery`` leaves no file, but a
begin record in the decision log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from twopc.integration.spark.checkpoint import decoding
from twopc.integration.spark.handed_over import newest_handover
from twopc.sealed import unseal

if TYPE_CHECKING:
    from twopc.files import Files

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
    """Return the last batch that the query may have finished; None if the log does not tell.

    Args:
        log: the name of a decision log. The log is not open for another query.
        decided: the last batch of the query that was decided in the log; None if none was decided.
        bound: the log to which the checkpoint is bound; None if the checkpoint is unbound.
        former: the last batch that another writer finished; see :func:`last_former_batch`.
    """
    # The checkpoint is bound before the first decision. So an empty log is that of a sink that has not joined the query yet,
    # unless the checkpoint is unbound or bound to this very log.
    if decided is None and bound not in {None, log}:
        return None
    # After a rollback, the old sink writes on. A second cut-over is then ahead of the query's last decision.
    return former if decided is None or former is None else max(decided, former)


def _restored_batch(own: Files) -> int:
    data = own.read(NOTE)
    if data is None:
        return -1
    with decoding(own, NOTE):
        return unseal(data, Note).batch_id
