"""Check that no batch was skipped before a hand-over or a rollback: see :mod:`twopc.integration.spark.skipped`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.errors import ConfigurationError
from twopc.integration.spark.skipped import skipped

if TYPE_CHECKING:
    from twopc.integration.migrate.handover import Handover
    from twopc.integration.migrate.place import Place


def require_none_skipped(  # noqa: PLR0913 - the facts
    place: Place,
    last: Handover | None,
    query_id: str,
    finished: int,
    decided: int | None,
    *,
    told: int | None = None,
) -> None:
    """Check that the new query has decided every batch that Spark has recorded as done since the query was to write.

    Args:
        place: the checkpoint.
        last: the hand-over in effect, if any.
        query_id: the query.
        finished: the last batch that Spark has recorded as done.
        decided: the last batch that the new query has decided; None if it has decided none.
        told: the last batch that the old query has finished, according to the user; None if the user says nothing.

    Raises:
        ConfigurationError: a batch was skipped, and the user does not say that the old query has finished it. Or the user names
            another batch than the last finished one.
    """
    if told is not None and told != finished:
        raise ConfigurationError(
            f"--old-query-finished names batch {told}, but the last batch that Spark has recorded as done is batch {finished}. "
            "Nothing was done. Check --checkpoint, and check that the old query itself has finished the batch"
        )
    if told is not None or (last is not None and last.is_back):
        return  # after a rollback, the old query writes, and nothing records what it has written
    begins = [] if last is None or last.query_id != query_id else [last.first_batch]
    due = max([*begins, *([] if decided is None else [decided + 1])], default=finished + 1)
    if due <= finished:
        raise ConfigurationError(skipped(due, finished, lambda: bool(place.files.names("state"))))
