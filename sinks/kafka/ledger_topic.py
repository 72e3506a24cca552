"""Create the ledger with safe settings, and reject dangerous settings (rule 14).

The ledger is the topic for decisions and markers.

Partition 0 contains the driver's records, and the other partitions contain the tasks' markers. Records and markers never share a
partition, because a task's open transaction holds back its partition's last stable offset.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType
from tenacity import wait_fixed

from twopc.counted import counted
from twopc.decision_log import ABSENT
from twopc.errors import ConfigurationError, RetriableError, TwoPhaseCommitError
from twopc.retry import retrying
from twopc.sinks.kafka.asking import ask, is_unavailable, request_s
from twopc.sinks.kafka.errors import error_of, is_retriable, on_topic, translate, translated
from twopc.sinks.kafka.topic_settings import batch_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from concurrent.futures import Future

    from confluent_kafka.admin import AdminClient, TopicDescription, TopicMetadata

T = TypeVar("T")

logger = logging.getLogger(__name__)

DRIVER_PARTITION: Final = 0
MARKER_PARTITIONS: Final = 8
TRANSACTION_LOG: Final = "__transaction_state"
_REPLICAS: Final = 3
_DEFAULT_BATCH_LIMIT: Final = 1_048_588
_LOWEST_BATCH_LIMIT: Final = 10_000

_REQUIRED: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_UNCLEAN: Final = "unclean.leader.election.enable"
_WEAK: Final = {"min.insync.replicas": "1", _UNCLEAN: "true"}


def describe(
    admin: AdminClient, topic: str, *, timeout_ms: float, with_rights: bool = False
) -> TopicDescription | None:
    """Read a topic's id and partitions, and the client's permissions on the topic.

    Return None if the topic does not exist.
    """

    def request() -> TopicDescription | None:
        (future,) = admin.describe_topics(
            TopicCollection([topic]),
            request_timeout=request_s(timeout_ms),
            include_authorized_operations=with_rights,
        ).values()
        with translated(f"describing the topic {topic}", right=on_topic("Describe", topic)):
            return _unless_unknown(future)

    return ask(admin, request, timeout_ms=timeout_ms)


def settings_of(admin: AdminClient, topic: str, *, timeout_ms: float) -> dict[str, str | None] | None:
    """Read a topic's settings. Return None if the topic does not exist."""
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def request() -> dict[str, str | None] | None:
        (future,) = admin.describe_configs([resource], request_timeout=request_s(timeout_ms)).values()
        with translated(f"reading the settings of {topic}", right=on_topic("DescribeConfigs", topic)):
            found = _unless_unknown(future)
        return None if found is None else {name: entry.value for name, entry in found.items()}

    return ask(admin, request, timeout_ms=timeout_ms)


def _unless_unknown(future: Future[T]) -> T | None:
    """Wait for a response. Return None if the topic does not exist."""
    try:
        return future.result()
    except KafkaException as error:
        if error_of(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


def warn_of_weakness(admin: AdminClient, topic: str, *, timeout_ms: float) -> None:
    """Warn if brokers may lose rows that they have acknowledged. The sink would not notice such a loss.

    Such a topic is not rejected, because other applications may own it. Without permission to read the settings, say nothing:
    ``twopc preflight`` reports the missing permission.
    """
    try:
        settings = settings_of(admin, topic, timeout_ms=timeout_ms) or {}
    except TwoPhaseCommitError:
        return
    weak = {name: value for name, value in _WEAK.items() if settings.get(name) == value}
    if weak:
        logger.warning(
            "the topic %s has %s, so brokers may lose rows that they have acknowledged, and the sink would not notice the loss. "
            "Set min.insync.replicas=2, with 3 replicas, and %s=false",
            topic,
            _listed(weak),
            _UNCLEAN,
        )


class LedgerTopic:
    """Manages a sink's ledger on its cluster. Every request may raise a :class:`TwoPhaseCommitError`."""

    def __init__(self, admin: AdminClient, name: str, *, timeout_ms: float) -> None:
        self._admin = admin
        self._name = name
        self._timeout_s = timeout_ms / 1000
        self._created_id = ""

    def identity(self) -> str:
        """Return the topic id, which changes when the topic is recreated.

        Return :data:`ABSENT` if the topic does not exist, and :data:`NO_ID` if the brokers have no topic ids.
        """
        # ensure() has read the id. Afterward, a broker that lags might still report the topic as absent.
        return self._created_id or self._find_id()

    def ensure(self) -> None:
        """Create the ledger if it does not exist.

        Wait until the brokers have registered the ledger and every partition has a leader.
        """
        if self._find_id() == ABSENT:
            self._create()
        self._created_id = self._until_known(self._id_when_ready)

    def require_creatable(self) -> None:
        """Ask the brokers whether :meth:`ensure` could create the ledger. Create nothing."""
        self._create(validate_only=True)

    def marker_partitions(self) -> list[int]:
        """List the partitions for markers. A broker that lags may not know a new ledger yet."""
        known = self._until_known(self._known_partitions)
        partitions = sorted(set(known) - {DRIVER_PARTITION})
        if not partitions:
            raise ConfigurationError(
                f"the ledger {self._name} has {counted(len(known), 'partition')}. Add partitions: the ledger needs one for "
                "decisions and at least one for markers"
            )
        return partitions

    def require_safe(self) -> None:
        """Reject settings that could lose decisions or markers, and warn about weak settings."""
        ledger = self._settings(self._name)
        wrong = {name: ledger.get(name) for name, value in _REQUIRED.items() if ledger.get(name) != value}
        if wrong:
            raise ConfigurationError(
                f"the ledger {self._name} has {_listed(wrong)}, so Kafka would delete decisions. Set {_listed(_REQUIRED)} "
                "(kafka-configs --alter)"
            )
        for name, settings in ((self._name, ledger), (TRANSACTION_LOG, self._transaction_log())):
            if settings.get(_UNCLEAN) == "true":
                raise ConfigurationError(
                    f"the topic {name} has {_UNCLEAN}=true, so a stale leader could lose decisions. Set this option to false"
                )
            if settings and int(settings.get("min.insync.replicas") or 1) < 2:  # noqa: PLR2004 - with 1, a single copy is enough
                logger.warning(
                    "%s has min.insync.replicas=1, so acknowledged decisions may be lost if one broker loses its disk. Set "
                    "this option to 2, with 3 replicas",
                    name,
                )

    def batch_limit(self) -> int:
        """Return the size of the largest batch that the ledger accepts, in bytes.

        Reject a limit that is too small for markers.
        """
        limit, name = batch_limit(self._settings(self._name)) or (_DEFAULT_BATCH_LIMIT, "")
        if limit < _LOWEST_BATCH_LIMIT:
            raise ConfigurationError(
                f"the ledger {self._name} has {name}={limit}, which is too small for its records. Set "
                f"{_LOWEST_BATCH_LIMIT} or more"
            )
        return limit

    def _find_id(self) -> str:
        found = describe(self._admin, self._name, timeout_ms=self._timeout_s * 1000)
        return ABSENT if found is None else str(found.topic_id)

    def _create(self, *, validate_only: bool = False) -> None:
        by_hand = f"{1 + MARKER_PARTITIONS} partitions and {_listed(_REQUIRED)}"
        replicas = self._replicas()
        config = {**_REQUIRED, _UNCLEAN: "false", "min.insync.replicas": str(2 if replicas == _REPLICAS else 1)}
        new = NewTopic(self._name, 1 + MARKER_PARTITIONS, replicas, config=config)
        timeout_ms = self._timeout_s * 1000

        def request() -> None:
            created = self._admin.create_topics(
                [new], request_timeout=request_s(timeout_ms), validate_only=validate_only
            )
            try:
                created[self._name].result()
            except KafkaException as error:
                code = error_of(error).code()
                if code == KafkaError.INVALID_REPLICATION_FACTOR:
                    raise RetriableError(
                        f"the ledger {self._name} cannot be created with {replicas} replicas: {error_of(error).str()} Nothing "
                        "was written. Start the missing brokers and restart the query. If the cluster has no other brokers, "
                        f"allow Describe on the topic {TRANSACTION_LOG}: the sink then creates the ledger with as many "
                        f"replicas as that topic has. Or create the ledger yourself with fewer replicas, {by_hand}"
                    ) from error
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    right = f"{on_topic('Create', self._name)}, or create the ledger yourself with {by_hand}"
                    raise translate(error, f"creating the ledger {self._name}", right) from error

        # If a policy or a missing broker is the cause, the next request fails, too.
        ask(self._admin, request, timeout_ms=timeout_ms, again=is_unavailable)

    def _replicas(self) -> int:
        """Return three, or the transaction log's number of replicas if that is lower.

        Decisions depend on both the ledger and the transaction log. The result does not depend on the number of
        running brokers. If it did, a first start during a rolling restart would create a permanently weak ledger.
        """
        try:
            found = describe(self._admin, TRANSACTION_LOG, timeout_ms=self._timeout_s * 1000)
        except ConfigurationError:  # the client has no permission to describe the topic
            found = None
        return min([_REPLICAS, *(len(partition.replicas) for partition in (found.partitions if found else ()))])

    def _transaction_log(self) -> dict[str, str | None]:
        try:
            return self._settings(TRANSACTION_LOG)
        except ConfigurationError as error:
            logger.warning(
                "the settings of %s could not be checked (%s). Make sure that this topic has 3 replicas, "
                "min.insync.replicas=2 and %s=false",
                TRANSACTION_LOG,
                str(error),  # only the text, because a log handler that keeps the error would keep its client alive
                _UNCLEAN,
            )
            return {}

    def _id_when_ready(self) -> str:
        known = self._metadata()
        if known.error is not None or not known.partitions or any(p.leader < 0 for p in known.partitions.values()):
            raise RetriableError(f"some partitions of the ledger {self._name} do not have a leader yet")
        self._settings(self._name)
        found = self._find_id()
        if found == ABSENT:
            raise self._unknown()
        return found

    def _until_known(self, ask_for: Callable[[], T]) -> T:
        """Repeat a question about a new ledger until a broker that lags knows the ledger."""
        return retrying(is_retriable, timeout_s=self._timeout_s, backoff=wait_fixed(0.05))(ask_for)

    def _known_partitions(self) -> Collection[int]:
        found = self._metadata()
        if found.error is not None:
            raise self._unknown()
        return found.partitions

    def _metadata(self) -> TopicMetadata:
        with translated(f"describing the ledger {self._name}", right=on_topic("Describe", self._name)):
            return self._admin.list_topics(self._name, timeout=self._timeout_s).topics[self._name]

    def _settings(self, topic: str) -> dict[str, str | None]:
        found = settings_of(self._admin, topic, timeout_ms=self._timeout_s * 1000)
        if found is None and topic != TRANSACTION_LOG:  # the cluster's first transaction creates that topic
            raise self._unknown()
        return found or {}

    def _unknown(self) -> RetriableError:
        return RetriableError(f"the ledger {self._name} is not known to every broker yet")


def _listed(settings: dict[str, str] | dict[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
