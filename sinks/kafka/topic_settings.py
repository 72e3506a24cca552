"""Read the settings of output topics, in a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from twopc.errors import TwoPhaseCommitError
from twopc.sinks.kafka.client_log import client_logger
from twopc.sinks.kafka.oauth import require_token

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from twopc.sinks.kafka.settings import KafkaSettings

#: The settings that limit a topic's batches. The segment size is a limit because a batch must fit in one segment.
_BATCH_LIMITS: Final = ("max.message.bytes", "segment.bytes")
_REQUEST_S: Final = 5.0

#: The size in bytes of the largest batch that a topic accepts, and the name of the setting that imposes this limit.
Limit = tuple[int, str]


def batch_limit(settings: Mapping[str, str | None]) -> Limit | None:
    """Return the limit of a topic with these settings; None if they contain no limit."""
    found = ((int(value), name) for name in _BATCH_LIMITS if (value := settings.get(name)))
    return min(found, default=None)


def settings_of_topics(settings: KafkaSettings, topics: Collection[str]) -> dict[str, dict[str, str] | None]:
    """Read each topic's settings, by name. Without permission to read them, the result is None. Raises nothing.

    The result omits topics that do not exist yet.
    """
    config = settings.connection_config()
    found: dict[str, dict[str, str] | None] = {}
    try:
        require_token(config)
        admin = AdminClient(config, logger=client_logger)
        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        timeout_s = min(_REQUEST_S, settings.timeout_ms / 1000)
        for resource, future in admin.describe_configs(wanted, request_timeout=timeout_s).items():
            try:
                found[resource.name] = {name: entry.value for name, entry in future.result().items()}
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    found[resource.name] = None
    except (KafkaException, TwoPhaseCommitError):  # the producer runs into the same error, and describes it better
        return dict.fromkeys(topics)
    return found
