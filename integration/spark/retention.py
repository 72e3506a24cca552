"""How many decisions are kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

#: Flink's ``state.checkpoints.num-retained`` is 1; a decision is small.
NUM_RETAINED: Final = 10
_SPARKS: Final = "spark.sql.streaming.minBatchesToRetain"
_SPARKS_DEFAULT: Final = "100"


def decisions_kept(session: SparkSession, num_retained: int | None) -> int:
    """As many as the user says, and never fewer than Spark keeps batches: it can be set back to each of them.

    Args:
        session: the query's own.
        num_retained: what the user has set; None: :data:`NUM_RETAINED`.
    """
    sparks = int(session.conf.get(_SPARKS, _SPARKS_DEFAULT) or _SPARKS_DEFAULT)
    if num_retained is not None and num_retained < sparks:
        text = "CheckpointConfig.num_retained=%d: %d decisions are kept, because %s=%d, and Spark can go back to each of them"
        logger.warning(text, num_retained, sparks, _SPARKS, sparks)
    return max(num_retained or NUM_RETAINED, sparks)
