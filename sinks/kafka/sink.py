"""The transactional Kafka sink: what its user describes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sinks.kafka import options
from sinks.kafka.handle import KafkaHandle
from sinks.kafka.producer_pool import PoolKey, pool_for
from sinks.kafka.settings import KafkaSettings
from sinks.kafka.writer import KafkaWriter
from twopc.errors import ConfigurationError
from twopc.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from sinks.kafka.committer import KafkaCommitter
    from sinks.kafka.decision_log import KafkaDecisionLog
    from twopc.attempt import TaskAttempt
    from twopc.columns import SinkColumn

# No dot: transactional ids are found by the prefix "<name>.".
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MESSAGE_MAX_BYTES: Final = 1_000_000  # librdkafka's default
_SHORTEST_TRANSACTION_MS: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class KafkaSink(TwoPhaseCommitSink[KafkaHandle]):
    """Rows to Kafka, exactly once, committed by the driver after its decision.

    Args:
        name: names the sink across restarts; prefix of its transactional ids. Letters, digits, ``_`` and ``-``.
        bootstrap_servers: ``host:port``, several with commas.
        topic: where rows go; overrides the column ``topic``, as in Spark. None uses that column.
        options: librdkafka's options with the prefix ``kafka.``, for example ``{"kafka.compression.type": "zstd"}``.
            ``kafka.transaction.timeout.ms`` (default 900000, the brokers' default maximum) limits how long a batch takes.
        ledger_topic: the topic of decisions and markers; by default ``twopc-ledger-<name>``, created if absent.
        timeout_ms: how long one step may wait for the brokers.

    Raises:
        ConfigurationError: names the argument or option, its value, and what to set.
    """

    name: str
    bootstrap_servers: str
    topic: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold passwords
    ledger_topic: str | None = None
    timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"KafkaSink(name={self.name!r}) is no valid name. Use 1 to 100 letters, digits, '_' or '-'; no dot, which "
                "separates the parts of transactional ids"
            )
        if not self.bootstrap_servers.strip():
            raise ConfigurationError("KafkaSink(bootstrap_servers='') names no broker. Set host:port of at least one")
        for argument, topic in (("topic", self.topic), ("ledger_topic", self.ledger_topic)):
            if topic is not None and not _TOPIC.fullmatch(topic):
                raise ConfigurationError(
                    f"KafkaSink({argument}={topic!r}) is no valid topic name. Use 1 to 249 letters, digits, '.', '_' or '-'"
                )
        if self.timeout_ms <= 0:
            raise ConfigurationError(
                f"KafkaSink(timeout_ms={self.timeout_ms}) is too short. Set a positive number of milliseconds"
            )
        object.__setattr__(self, "options", dict(self.options))
        options.parse(self.options)
        transaction_ms = self._settings.transaction_timeout_ms
        if transaction_ms < _SHORTEST_TRANSACTION_MS:
            raise ConfigurationError(
                f"option 'kafka.transaction.timeout.ms'={transaction_ms} is too short: a batch must be written and "
                f"committed within it. Set at least {_SHORTEST_TRANSACTION_MS}, better several minutes"
            )
        self.committing_config()

    @property
    def handle_type(self) -> type[KafkaHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        return KafkaHandle

    @property
    def ledger(self) -> str:
        """The ledger's topic."""
        return self.ledger_topic or f"twopc-ledger-{self.name}"

    @property
    def prepare_timeout_ms(self) -> float:
        """See :class:`TwoPhaseCommitSink`."""
        return self._settings.transaction_timeout_ms - self._settings.reserve_ms

    @property
    def takes_dead_letters(self) -> bool:
        """See :class:`TwoPhaseCommitSink`."""
        return self.topic is not None

    def choose_columns(self, schema: pa.Schema) -> Sequence[SinkColumn]:
        """See :class:`TwoPhaseCommitSink`: the columns of Spark's own Kafka writer, and ``timestamp``."""
        from sinks.kafka.columns import kafka_columns  # noqa: PLC0415 - executors choose none

        return kafka_columns(schema, has_topic=self.topic is not None)

    def check(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. Ignores what only brokers know: a topic's own limits and partitions."""
        from sinks.kafka.records import require_writable  # noqa: PLC0415 - only where bad records become dead letters

        max_bytes = int(self._settings.options.get("message.max.bytes", _MESSAGE_MAX_BYTES))
        require_writable(rows, has_topic=self.topic is not None, max_bytes=max_bytes)

    def create_writer(self, task: TaskAttempt) -> KafkaWriter:
        """See :class:`TwoPhaseCommitSink`."""
        settings = self._settings
        config = tuple(sorted(settings.producer_config().items()))
        pool = pool_for(PoolKey(self.name, task.driver_epoch, self.ledger, config), timeout_ms=self.timeout_ms)
        return KafkaWriter(task, pool, topic=self.topic, ledger=self.ledger, timeout_ms=self.timeout_ms)

    def create_committer(self) -> KafkaCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        from sinks.kafka.committer import KafkaCommitter  # noqa: PLC0415 - executors need no committing client

        return KafkaCommitter(self._settings)

    def create_decision_log(self) -> KafkaDecisionLog:
        """The sink's decision log, not yet acquired."""
        from sinks.kafka.decision_log import KafkaDecisionLog  # noqa: PLC0415 - the same

        return KafkaDecisionLog(self._settings)

    def committing_config(self) -> dict[str, Any]:
        """The connection of the client that commits prepared transactions."""
        return self._settings.committing_config()

    @property
    def _settings(self) -> KafkaSettings:
        return KafkaSettings(
            sink=self.name,
            bootstrap_servers=self.bootstrap_servers,
            topic=self.topic,
            ledger=self.ledger,
            options=options.bare(self.options),
            timeout_ms=self.timeout_ms,
        )
