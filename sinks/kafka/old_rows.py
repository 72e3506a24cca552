"""Warn of rows whose ``timestamp`` is so old that the broker may delete them soon after their commit.

Kafka counts a record's age from its timestamp (``retention.ms`` in Kafka's TopicConfig.java). Spark's own sink writes no
timestamps, so users who replace that sink do not expect such deletions.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from twopc.sinks.kafka.settings import Place
from twopc.sinks.kafka.topic_settings import Pauses, Unread, settings_of_topics

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from twopc.sinks.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

#: If all rows are younger, the topics' settings are not read. Few topics keep their records for less than an hour.
_OLD_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
#: A sink in a process, and one of its topics.
_Sink = tuple[int, Place]
_Topic = tuple[_Sink, str]
#: How long each topic keeps a record after the record's own timestamp; None if that timestamp does not matter.
_known: dict[_Topic, int | Unread | None] = {}
_pauses: dict[_Sink, Pauses] = {}
#: The topics that the process has warned of: a warning for each batch would hide other warnings.
_warned: set[_Topic] = set()
#: The sinks that could not read the retention of a topic. A failure or a missing permission often concerns all topics of a sink,
#: and rows may name many topics.
_warned_unread: set[_Sink] = set()
_INSTEAD: Final = (
    "If the rows should carry the time when they were written, as with Spark's own sink, drop the 'timestamp' column"
)


def warn_of_old_rows(settings: KafkaSettings, rows: pa.RecordBatch, topics: Collection[str]) -> None:
    """Log a warning if these rows' topics may delete a row because of its age. A process warns of a topic once.

    If the age at which topics delete rows cannot be read, a process warns once per sink.
    """
    if "timestamp" not in rows.schema.names:
        return
    earliest_ms = pc.min(rows.column("timestamp")).as_py()
    age_ms = 0 if earliest_ms is None else time.time() * 1000 - earliest_ms
    if age_ms < _OLD_MS:
        return
    sink = (os.getpid(), settings.place)
    pauses = _pauses.setdefault(sink, Pauses())
    if due := pauses.due(topics):
        for topic, answer in settings_of_topics(settings, due).items():
            _known[sink, topic] = answer if isinstance(answer, Unread) else _retention_ms(answer)
            pauses.note(topic, answer)
    for topic in topics:
        _warn(settings.name, (sink, topic), age_ms)


def _warn(name: str, topic: _Topic, age_ms: float) -> None:
    retention_ms = _known.get(topic)
    if isinstance(retention_ms, Unread):
        if retention_ms.why and topic[0] not in _warned_unread:
            _warned_unread.add(topic[0])
            remedy = (
                f"Allow DescribeConfigs on the topic {topic[1]}" if retention_ms.is_refused else "Check the brokers"
            )
            logger.warning(
                "sink %r: this task writes a row with a timestamp that is %.1f days old, but the sink could not read how long "
                "the topic %s keeps records (%s). If the topic's retention.ms is shorter than that, the broker may delete the "
                "row soon after its commit. %s, or compare retention.ms with the rows yourself. %s. This "
                "process logs this warning only for the sink's first such topic",
                name,
                age_ms / _DAY_MS,
                topic[1],
                retention_ms.why,
                remedy,
                _INSTEAD,
            )
    elif retention_ms is not None and age_ms > retention_ms and topic not in _warned:
        _warned.add(topic)
        logger.warning(
            "sink %r: this task writes a row with a timestamp that is %.1f days old, but the topic %s keeps records for only "
            "%.1f days after their timestamp (retention.ms=%d). So the broker may delete the row soon after its commit. %s. "
            "Otherwise, increase retention.ms",
            name,
            age_ms / _DAY_MS,
            topic[1],
            retention_ms / _DAY_MS,
            retention_ms,
            _INSTEAD,
        )


def _retention_ms(found: dict[str, str]) -> int | None:
    """Return how long a topic keeps a record after the record's own timestamp; None if that timestamp does not matter."""
    if "delete" not in found.get("cleanup.policy", "") or found.get("message.timestamp.type") != "CreateTime":
        return None
    retention_ms = int(found.get("retention.ms", -1))
    return retention_ms if retention_ms >= 0 else None
