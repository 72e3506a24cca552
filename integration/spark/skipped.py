"""Find the batches after a hand-over that Spark has recorded as done, although the new query has not decided them.

Either the old query has run again and has written them, or the user's function has caught an error of the new query. In the
second case, nobody has written their missing rows. If the error came before the query's first record in the decision log, the
log does not show the gap, and ``AdoptQuery`` would accept the next batch as the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.integration.spark.handed_over import newest_handover
from twopc.refusals import run_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from twopc.batch import Batch
    from twopc.files import Files


def skipped_before(own: Files, batch: Batch, decided: int | None) -> str | None:
    """Say which batches were skipped between the hand-over in effect and the batch. Return None if none were.

    Args:
        own: the directory ``<checkpoint>/twopc``.
        batch: a run's first batch.
        decided: the last batch that the query has decided; None if it has decided none.

    Raises:
        ConfigurationError: the hand-over cannot be read.
    """
    found = newest_handover(own)
    if found is None or found[1].query_id != batch.query_id or found[1].is_back:
        return None
    first = found[1].last_finished + 1
    if batch.batch_id <= first or (decided is not None and decided >= first):
        return None
    return skipped(first, batch.batch_id - 1, batch.keeps_state)


def skipped(first: int, last: int, keeps_state: Callable[[], bool]) -> str:
    """Say that the batches from ``first`` to ``last`` were skipped, and what to do.

    ``keeps_state`` returns whether the query keeps state.
    """
    batches, them = (f"batch {first}", "it") if first == last else (f"batches {first} to {last}", "them")
    return (
        f"Spark has recorded {batches} as done, but the new query has not decided {them}, and no rollback has returned the "
        "checkpoint to the old query. Nothing was recorded. There are three possible causes. (1) The old query has run in the "
        f"meantime, and has written all rows of {batches}. (2) There were no rows to write: for example, Spark's offline "
        "repartition of the state records a batch without running it. In these two cases, stop the query, run `twopc migrate "
        f"cutover --old-query-finished {last} --apply`, and repeat what failed. (3) The function that you pass to foreachBatch "
        "has caught an error of the new query and returned. (TakeOver(sink, dry_run=True) always raises an error.) In this "
        f"case, rows are missing, and a new cut-over would lose them, so have Spark run {batches} again. Stop the query, and "
        f"{run_again(first, keeps_state)}Then fix the function, and restart"
    )
