"""Write rows to Kafka exactly once. Each task has one transaction.

The driver commits all transactions after its decision.
"""

from twopc.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
