"""The ledger: the topic of decisions and markers. Created with the right settings, refused with dangerous ones (rule 14).

Partition 0 holds the driver's records, the others hold the tasks' markers. They are never mixed, because a task's open
transaction holds back the last stable offset of its partition.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from sinks.kafka.errors import error_of, translate
from twopc.errors import ConfigurationError, RetriableError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger(__name__)

DRIVER_PARTITION: Final = 0
MARKER_PARTITIONS: Final = 8
TRANSACTION_LOG: Final = "__transaction_state"
ABSENT: Final = "absent"
_REPLICAS: Final = 3
_DEFAULT_BATCH_LIMIT: Final = 1_048_588
_LOWEST_BATCH_LIMIT: Final = 10_000

_REQUIRED: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_UNCLEAN: Final = "unclean.leader.election.enable"


def topic_id(admin: AdminClient, topic: str, *, timeout_ms: float) -> str:
    """The topic's id, which changes when it is recreated; ``absent`` if there is none."""
    (future,) = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_ms / 1000).values()
    try:
        return str(future.result().topic_id)
    except KafkaException as error:
        if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ABSENT
        raise translate(error, f"describing the ledger {topic}") from error


def ensure(admin: AdminClient, topic: str, *, timeout_ms: float) -> str:
    """Create the ledger if it is absent, and wait until the brokers know it and every partition has a leader.

    Returns:
        its id.

    Raises:
        TwoPhaseCommitError: it could not be created, or did not get leaders in time.
    """
    if topic_id(admin, topic, timeout_ms=timeout_ms) == ABSENT:
        _create(admin, topic, timeout_ms=timeout_ms)
    for attempt in Retrying(
        stop=stop_after_delay(timeout_ms / 1000),
        wait=wait_fixed(0.05),
        retry=retry_if_exception_type(RetriableError),
        reraise=True,
    ):
        with attempt:
            _require_leaders(admin, topic, timeout_ms)
            _settings(admin, topic, timeout_ms)
            found = topic_id(admin, topic, timeout_ms=timeout_ms)
            if found == ABSENT:
                raise RetriableError(f"the ledger {topic} is not known to every broker yet")
            return found
    raise AssertionError("unreachable: the last attempt raises")


def _require_leaders(admin: AdminClient, topic: str, timeout_ms: float) -> None:
    try:
        known = admin.list_topics(topic, timeout=timeout_ms / 1000).topics[topic]
    except KafkaException as error:
        raise translate(error, f"describing the ledger {topic}") from error
    if known.error is not None or not known.partitions or any(p.leader < 0 for p in known.partitions.values()):
        raise RetriableError(f"the ledger {topic} has no leader for every partition yet")


def _create(admin: AdminClient, topic: str, *, timeout_ms: float) -> None:
    try:
        brokers = len(admin.list_topics(timeout=timeout_ms / 1000).brokers)
        replicas = min(_REPLICAS, brokers)
        config = {**_REQUIRED, _UNCLEAN: "false", "min.insync.replicas": str(2 if replicas == _REPLICAS else 1)}
        new = NewTopic(topic, 1 + MARKER_PARTITIONS, replicas, config=config)
        admin.create_topics([new], request_timeout=timeout_ms / 1000)[topic].result()
    except KafkaException as error:
        if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise translate(error, f"creating the ledger {topic}") from error


def marker_partitions(admin: AdminClient, topic: str, *, timeout_ms: float) -> list[int]:
    """The ledger's partitions that hold markers."""
    try:
        known = admin.list_topics(topic, timeout=timeout_ms / 1000).topics[topic].partitions
    except KafkaException as error:
        raise translate(error, f"describing the ledger {topic}") from error
    partitions = sorted(set(known) - {DRIVER_PARTITION})
    if not partitions:
        raise ConfigurationError(
            f"the ledger {topic} has {len(known)} partition(s). Add partitions: it needs one for decisions and at least one for "
            "markers"
        )
    return partitions


def require_safe(admin: AdminClient, topic: str, *, timeout_ms: float) -> None:
    """Refuse settings under which decisions or markers could be lost; warn about weak ones.

    Raises:
        ConfigurationError: names the topic, the setting and the value to set.
    """
    ledger = _settings(admin, topic, timeout_ms)
    wrong = {name: ledger.get(name) for name, value in _REQUIRED.items() if ledger.get(name) != value}
    if wrong:
        raise ConfigurationError(
            f"the ledger {topic} has {_listed(wrong)}, so decisions would be deleted. Set {_listed(_REQUIRED)} "
            "(kafka-configs --alter)"
        )
    for name, settings in ((topic, ledger), (TRANSACTION_LOG, _settings(admin, TRANSACTION_LOG, timeout_ms))):
        if settings.get(_UNCLEAN) == "true":
            raise ConfigurationError(
                f"the topic {name} has {_UNCLEAN}=true, so a stale leader could lose decisions. Set it to false"
            )
        if settings and int(settings.get("min.insync.replicas") or 1) < 2:  # noqa: PLR2004 - one copy is the last copy
            logger.warning(
                "%s has min.insync.replicas=1, so losing one broker's disk can lose acknowledged decisions. Set it to 2, with 3 "
                "replicas",
                name,
            )


def batch_limit(admin: AdminClient, topic: str, *, timeout_ms: float) -> int:
    """The largest batch that the ledger takes, in bytes.

    Raises:
        ConfigurationError: it is too small for markers.
    """
    limit = int(_settings(admin, topic, timeout_ms).get("max.message.bytes") or _DEFAULT_BATCH_LIMIT)
    if limit < _LOWEST_BATCH_LIMIT:
        raise ConfigurationError(
            f"the ledger {topic} has max.message.bytes={limit}, too small for its records. Set {_LOWEST_BATCH_LIMIT} or more"
        )
    return limit


def _settings(admin: AdminClient, topic: str, timeout_ms: float) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (future,) = admin.describe_configs([resource], request_timeout=timeout_ms / 1000).values()
    try:
        return {name: entry.value for name, entry in future.result().items()}
    except KafkaException as error:
        if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            if topic == TRANSACTION_LOG:
                return {}  # the cluster's first transaction creates it
            raise RetriableError(f"the ledger {topic} is not known to every broker yet") from error
        raise translate(error, f"reading the settings of {topic}, which needs the right DescribeConfigs") from error


def _listed(settings: dict[str, str] | dict[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
