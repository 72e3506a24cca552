"""A topic that a command creates for itself and deletes at the end."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import NewTopic

from twopc.errors import TwoPhaseCommitError
from twopc.sinks.kafka.errors import on_topic, translated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka.admin import AdminClient

logger = logging.getLogger(__name__)

_DEFAULT_REPLICAS: Final = -1


@contextlib.contextmanager
def own_topic(
    admin: AdminClient, topic: str, timeout_s: float, config: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Create a topic with one partition, and delete the topic after the body. If the body fails, raise the body's error.

    Raises:
        ConfigurationError: a permission is missing.
        TwoPhaseCommitError: the topic could not be created or deleted.
    """
    with translated(f"creating the topic {topic}", right=on_topic("Create", topic)):
        wanted = NewTopic(topic, 1, _DEFAULT_REPLICAS, config={**(config or {})})
        admin.create_topics([wanted], request_timeout=timeout_s)[topic].result()
    try:
        yield
    except BaseException:
        try:
            _delete(admin, topic, timeout_s)
        except TwoPhaseCommitError as error:
            logger.warning("the topic %s is left behind. Delete it. Cause: %s", topic, error)
        raise
    _delete(admin, topic, timeout_s)


def _delete(admin: AdminClient, topic: str, timeout_s: float) -> None:
    with translated(f"deleting the topic {topic}", right=on_topic("Delete", topic)):
        admin.delete_topics([topic], request_timeout=timeout_s)[topic].result()
