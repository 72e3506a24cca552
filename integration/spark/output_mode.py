"""Warn if a sink that only appends receives the query's whole result in each batch."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from twopc.sink import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twopc.integration.spark.mode import Mode
    from twopc.sink import TwoPhaseCommitSink

logger = logging.getLogger(__name__)

#: The output mode in which Spark passes the query's whole result in each batch.
COMPLETE: Final = "complete"


def warn_of_whole_results(mode: Mode, sinks: Iterable[TwoPhaseCommitSink[Any]]) -> None:
    """Log each sink that would keep all results of a query in the output mode ``complete``.

    Spark's own table writers replace the table in this mode. A user may want a log of all results, so this is not an error.
    """
    names = [one.name for one in sinks if one.only_appends]
    if names and mode.output_mode == COMPLETE:
        logger.warning(
            "the query uses outputMode('complete'), so each batch contains the query's whole result. These sinks append every "
            "row and delete none: %s. If your function passes the batch to them unchanged, their tables contain each row of the "
            "result once for every batch, and readers that add up the rows count them several times. Spark's own writers "
            "replace the table instead. Use outputMode('append'), or a sink that updates rows by their key, such as "
            "PostgresSink(mode='upsert'). If you want a log of all results, do nothing",
            listed(names),
        )
