"""Write rows to Kafka exactly once, in one transaction per task, which the driver commits after its decision."""

from twopc.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
