"""Warn of rows whose ``timestamp`` is so old that the broker may delete them soon after their commit.

Kafka counts a record's age from its timestamp (``retention.ms`` in Kafka's TopicConfig.java). Spark's own sink writes no
timestamps, so users who replace it do not expect this.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from twopc.sinks.kafka.settings import Place
from twopc.sinks.kafka.topic_settings import settings_of_topics

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from twopc.sinks.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

#: If all rows are younger, the topics' settings are not read. Few topics keep their records for less than an hour.
_OLD_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
#: A topic, seen from one process and sink.
_Topic = tuple[int, Place, str]
#: How long each known topic keeps a record after the record's own timestamp; None if that timestamp does not matter.
_known: dict[_Topic, int | None] = {}
#: The topics that the process has warned of: a warning for each batch would hide other warnings.
_warned: set[_Topic] = set()


def warn_of_old_rows(settings: KafkaSettings, rows: pa.RecordBatch, topics: Collection[str]) -> None:
    """Log a warning if these rows' topics may delete a row because of its age. A process warns of a topic once."""
    if "timestamp" not in rows.schema.names:
        return
    earliest_ms = pc.min(rows.column("timestamp")).as_py()
    age_ms = 0 if earliest_ms is None else time.time() * 1000 - earliest_ms
    if age_ms < _OLD_MS:
        return
    keys = {topic: (os.getpid(), settings.place, topic) for topic in topics}
    if new := sorted(topic for topic, key in keys.items() if key not in _known):
        found = settings_of_topics(settings, new)  # without topics that do not exist yet
        _known.update({keys[topic]: _retention_ms(entries or {}) for topic, entries in found.items()})
    for topic, key in keys.items():
        retention_ms = _known.get(key)
        if retention_ms is not None and age_ms > retention_ms and key not in _warned:
            _warned.add(key)
            logger.warning(
                "sink %r: this task writes a row with a timestamp that is %.1f days old, but the topic %s keeps records for only "
                "%.1f days after their timestamp (retention.ms=%d). So the broker may delete the row soon after its commit. If "
                "the rows should carry the time when they were written, as with Spark's own sink, drop the 'timestamp' column. "
                "Otherwise, increase retention.ms",
                settings.name,
                age_ms / _DAY_MS,
                topic,
                retention_ms / _DAY_MS,
                retention_ms,
            )


def _retention_ms(found: dict[str, str]) -> int | None:
    """Return how long a topic keeps a record after the record's own timestamp; None if that timestamp does not matter."""
    if "delete" not in found.get("cleanup.policy", "") or found.get("message.timestamp.type") != "CreateTime":
        return None
    retention_ms = int(found.get("retention.ms", -1))
    return retention_ms if retention_ms >= 0 else None
