"""The old way of writing rows to Kafka, as pipelines for Kafka 0.10 did. It DUPLICATES rows after a crash.

It is kept to rehearse a migration and to show the faults that a migration fixes; see `docs/migration.md`. New queries use
``twopc.sinks.kafka``.
"""

from twopc.sinks.kafka_legacy.sink import AtLeastOnceKafkaSink

__all__ = ["AtLeastOnceKafkaSink"]
