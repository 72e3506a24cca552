"""Write rows to Kafka in the old way, like pipelines for Kafka 0.10. A crash DUPLICATES rows.

Use this sink only to rehearse a migration, or to show the faults that a migration fixes; see `docs/migration.md`. New queries
should use ``twopc.sinks.kafka``.
"""

from twopc.sinks.kafka_legacy.sink import AtLeastOnceKafkaSink

__all__ = ["AtLeastOnceKafkaSink"]
