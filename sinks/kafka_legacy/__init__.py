"""The old way, to move away from: rows to Kafka as pipelines for 0.10 wrote them. It DOUBLES rows after a crash.

Kept to rehearse a migration and to show what it cures; `docs/migration.md`. New queries use ``twopc.sinks.kafka``.
"""

from twopc.sinks.kafka_legacy.sink import AtLeastOnceKafkaSink

__all__ = ["AtLeastOnceKafkaSink"]
