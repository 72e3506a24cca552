"""Exactly-once sinks in a PySpark streaming query: ``writeStream.foreachBatch(exactly_once(sink, …))``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from integration.spark.foreach_batch import ExactlyOnce, exactly_once

__all__ = ["ExactlyOnce", "exactly_once"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use (PEP 562).

    Every Python worker of Spark imports this package to reach ``task``; the driver's side would more than double the time.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from integration.spark import foreach_batch  # noqa: PLC0415 - the reason above

    return getattr(foreach_batch, name)
