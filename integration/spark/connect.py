"""Tell a DataFrame of Spark Connect from one of a classic session: each needs an object that was made for it."""

from __future__ import annotations

from pyspark.sql.utils import is_remote

from twopc.errors import ConfigurationError


def require_own_frame(frame: object, batch_id: int) -> None:
    """Check that a DataFrame of a batch does not come from Spark Connect if this process is the driver of a classic session.

    Raises:
        ConfigurationError: it comes from Spark Connect.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect.") and not is_remote():
        raise ConfigurationError(
            f"batch {batch_id} has a DataFrame of Spark Connect, but this process runs a classic session. Nothing was written. "
            "Pass the batch, or a DataFrame that is made from it"
        )
