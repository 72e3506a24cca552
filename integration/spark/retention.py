"""Choose the number of decisions to keep."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

#: The default. Flink's ``state.checkpoints.num-retained`` is 1 by default; a decision is small, so keeping more costs little.
NUM_RETAINED: Final = 10
_SPARKS: Final = "spark.sql.streaming.minBatchesToRetain"
_SPARKS_DEFAULT: Final = "100"


def decisions_kept(session: SparkSession, num_retained: int | None) -> int:
    """Return the user's number, but at least the number of batches that Spark retains.

    A query can be reset to any retained batch.

    Args:
        session: the query's session.
        num_retained: the user's setting; None means :data:`NUM_RETAINED`.
    """
    sparks = int(session.conf.get(_SPARKS, _SPARKS_DEFAULT) or _SPARKS_DEFAULT)
    if num_retained is not None and num_retained < sparks:
        text = (
            "CheckpointConfig.num_retained is %d, but the driver keeps %d decisions, because Spark can go back that many "
            "batches (%s=%d)"
        )
        logger.warning(text, num_retained, sparks, _SPARKS, sparks)
    return max(num_retained or NUM_RETAINED, sparks)
