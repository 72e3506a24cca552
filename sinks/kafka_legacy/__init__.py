"""Write rows to Kafka the old way, as pipelines for Kafka 0.10 did. A crash DUPLICATES rows.

Use this sink only to rehearse a migration, or to show the faults that a migration fixes; see `docs/migration.md`. New queries
should use ``twopc.sinks.kafka``.
"""

from twopc.sinks.kafka_legacy.sink import AtLeastOnceKafkaSink

__all__ = ["AtLeastOnceKafkaSink"]
