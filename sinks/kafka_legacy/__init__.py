"""The old way of writing rows to Kafka, as pipelines for 0.10 did it. It DUPLICATES rows after a crash.

Kept to rehearse a migration and to show what it fixes; see `docs/migration.md`. New queries use ``twopc.sinks.kafka``.
"""

from twopc.sinks.kafka_legacy.sink import AtLeastOnceKafkaSink

__all__ = ["AtLeastOnceKafkaSink"]
