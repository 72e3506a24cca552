"""Exactly-once sinks in a PySpark streaming query: ``writeStream.foreachBatch(exactly_once(sink, …))``."""

from integration.spark.foreach_batch import ExactlyOnce, exactly_once

__all__ = ["ExactlyOnce", "exactly_once"]
