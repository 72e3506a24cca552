"""Refuse Spark Connect: its ``foreachBatch`` runs in a process without the driver's status store (rule 6)."""

from __future__ import annotations

from typing import Final

from pyspark.sql.utils import is_remote

from twopc.errors import ConfigurationError

_WAY_OUT: Final = (
    "exactly_once() needs the driver, and Spark Connect gives no access to it. Nothing was written. Run the query in a classic "
    "session: SparkSession.builder.master(…) instead of .remote('sc://…'), with SPARK_REMOTE and SPARK_CONNECT_MODE_ENABLED "
    "unset and spark.api.mode=classic"
)


def require_classic_mode() -> None:
    """Check that this process has no session of Spark Connect.

    Raises:
        ConfigurationError: the process has one, or was started for one.
    """
    if is_remote():
        raise ConfigurationError(f"this process uses Spark Connect: {_WAY_OUT}")


def require_classic_frame(frame: object, batch_id: int) -> None:
    """Check that a DataFrame of a batch does not come from Spark Connect.

    Raises:
        ConfigurationError: it comes from Spark Connect.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect."):
        raise ConfigurationError(f"batch {batch_id} has a DataFrame of Spark Connect: {_WAY_OUT}")
