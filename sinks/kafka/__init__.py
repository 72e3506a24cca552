"""Rows to Kafka, exactly once: one transaction per task, committed by the driver after its decision."""

from twopc.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
