"""Tell a Spark Connect DataFrame from a classic one. Each needs an ``exactly_once`` object for its own kind of session."""

from __future__ import annotations

from pyspark.sql.utils import is_remote

from twopc.errors import ConfigurationError


def require_own_frame(frame: object, batch_id: int) -> None:
    """Check that a batch's DataFrame does not come from Spark Connect if this process is the driver of a classic session.

    Raises:
        ConfigurationError: the DataFrame comes from Spark Connect.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect.") and not is_remote():
        raise ConfigurationError(
            f"batch {batch_id} has a Spark Connect DataFrame, but this process runs a classic session. Nothing was written. "
            "Pass the batch, or a DataFrame that is made from it"
        )
