"""Distinguish Spark Connect DataFrames from classic DataFrames.

An ``exactly_once`` object takes only one kind of DataFrame.
"""

from __future__ import annotations

from pyspark.sql.utils import is_remote

from twopc.errors import ConfigurationError


def require_own_frame(frame: object, batch_id: int) -> None:
    """Reject a Spark Connect DataFrame in the driver of a classic session.

    Raises:
        ConfigurationError: the DataFrame comes from Spark Connect.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect.") and not is_remote():
        raise ConfigurationError(
            f"the function passed a Spark Connect DataFrame for batch {batch_id}, but this process runs a classic "
            "session. Nothing was written. Pass the batch itself, or a DataFrame derived from it"
        )
