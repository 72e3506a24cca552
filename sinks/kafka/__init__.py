"""Write rows to Kafka exactly once. Each task has one transaction, which the driver commits after its decision."""

from twopc.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
