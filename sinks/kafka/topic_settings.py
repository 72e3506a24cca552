"""Read the settings of output topics, in a task."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from twopc.errors import TwoPhaseCommitError
from twopc.sinks.kafka.client_log import client_logger
from twopc.sinks.kafka.oauth import require_token

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from twopc.sinks.kafka.settings import KafkaSettings

#: The settings that limit a topic's batches. The segment size is a limit because a batch must fit in one segment.
_BATCH_LIMITS: Final = ("max.message.bytes", "segment.bytes")
_REQUEST_S: Final = 5.0
#: How long to wait before asking about a topic again. The first pause follows a failure, which may have taken the whole
#: :data:`_REQUEST_S`. The second pause applies if the topic does not exist, because its first record may create it.
_AFTER_FAILURE_S: Final = 60.0
_AFTER_ABSENCE_S: Final = 10.0
#: These errors mean that a permission is missing.
_REFUSALS: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})

#: The size in bytes of the largest batch that a topic accepts, and the name of the setting that imposes this limit.
Limit = tuple[int, str]


def batch_limit(settings: Mapping[str, str | None]) -> Limit | None:
    """Return the limit of a topic with these settings; None if they contain no limit."""
    found = ((int(value), name) for name in _BATCH_LIMITS if (value := settings.get(name)))
    return min(found, default=None)


@dataclass(frozen=True)
class Unread:
    """Why the settings of a topic are not known.

    Attributes:
        pause_s: how long to wait before asking again. Each question costs a new client and a request.
        why: the error; empty if the topic does not exist.
        is_refused: whether the permission is missing.
    """

    pause_s: float
    why: str = ""
    is_refused: bool = False

    @property
    def is_failure(self) -> bool:
        """Whether no broker has answered the question. A later request may succeed."""
        return bool(self.why) and not self.is_refused


def settings_of_topics(settings: KafkaSettings, topics: Collection[str]) -> dict[str, dict[str, str] | Unread]:
    """Read each topic's settings, by name. Raises nothing."""
    config = settings.connection_config()
    found: dict[str, dict[str, str] | Unread] = {}
    try:
        require_token(config)
        admin = AdminClient(config, logger=client_logger)
        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        timeout_s = min(_REQUEST_S, settings.timeout_ms / 1000)
        for resource, future in admin.describe_configs(wanted, request_timeout=timeout_s).items():
            try:
                found[resource.name] = {name: entry.value for name, entry in future.result().items()}
            except KafkaException as error:
                found[resource.name] = _unread(error.args[0])
    except KafkaException as error:
        return dict.fromkeys(topics, _unread(error.args[0]))
    except TwoPhaseCommitError as error:  # no token is available
        return dict.fromkeys(topics, Unread(_AFTER_FAILURE_S, str(error)))
    return found


def _unread(error: KafkaError) -> Unread:
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return Unread(_AFTER_ABSENCE_S)
    why = f"{error.str()} ({error.name()})"
    if error.code() in _REFUSALS:
        return Unread(math.inf, why, is_refused=True)
    return Unread(_AFTER_FAILURE_S, why)


class Pauses:
    """Records when each topic is due to be asked about. While the answer is known, or a pause lasts, the topic is not due."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def due(self, topics: Iterable[str]) -> list[str]:
        """List the topics to ask about."""
        now = time.monotonic()
        return sorted(topic for topic in set(topics) if self._until.get(topic, -math.inf) <= now)

    def note(self, topic: str, answer: object) -> None:
        """Record an answer. Only an :class:`Unread` with a finite pause makes the topic due again."""
        self._until[topic] = time.monotonic() + answer.pause_s if isinstance(answer, Unread) else math.inf
