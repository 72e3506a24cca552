"""The transactional Kafka sink: what its user describes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sinks.kafka import options
from sinks.kafka.producer_pool import PoolKey, pool_for
from sinks.kafka.writer import KafkaHandle, KafkaWriter
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
_RESERVE_MAX_MS: Final = 30_000
_SHORTEST_TRANSACTION_MS: Final = 2_000


@dataclass(frozen=True, kw_only=True)
class KafkaSink(TwoPhaseCommitSink[KafkaHandle]):
    """Rows to Kafka, exactly once, committed by the driver after its decision.

    Args:
        name: names the sink across restarts; prefix of its transactional ids. Letters, digits, ``_`` and ``-``.
        bootstrap_servers: ``host:port``, several with commas.
        topic: where rows go; None takes each row's own column ``topic``. As in Spark, it overrides that column.
        options: librdkafka's options with the prefix ``kafka.``, for example ``{"kafka.compression.type": "zstd"}``.
            ``kafka.transaction.timeout.ms`` (default 900000, the brokers' default maximum) bounds a batch.
        ledger_topic: the topic of decisions and markers; by default ``twopc-ledger-<name>``, created if absent.
        timeout_ms: how long one step may wait for the brokers.

    Raises:
        ConfigurationError: names the argument or option, and what to give instead.
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
                f"KafkaSink(name={self.name!r}): use 1 to 100 letters, digits, '_' or '-' (no dot: it separates the parts "
                "of transactional ids)"
            )
        if not self.bootstrap_servers.strip():
            raise ConfigurationError("KafkaSink(bootstrap_servers=''): give host:port of at least one broker")
        for argument, topic in (("topic", self.topic), ("ledger_topic", self.ledger_topic)):
            if topic is not None and not _TOPIC.fullmatch(topic):
                raise ConfigurationError(
                    f"KafkaSink({argument}={topic!r}): a topic's name has 1 to 249 letters, digits, '.', '_' or '-'"
                )
        if self.timeout_ms <= 0:
            raise ConfigurationError(f"KafkaSink(timeout_ms={self.timeout_ms}): give a positive number of milliseconds")
        object.__setattr__(self, "options", dict(self.options))
        parsed = options.parse(self.options)
        if options.transaction_timeout_ms(parsed) < _SHORTEST_TRANSACTION_MS:
            raise ConfigurationError(
                f"option 'kafka.transaction.timeout.ms' is {options.transaction_timeout_ms(parsed)}: a batch has to be "
                f"written and committed within it; give at least {_SHORTEST_TRANSACTION_MS}, better minutes"
            )
        options.committing_config(self.bootstrap_servers, parsed)

    @property
    def handle_type(self) -> type[KafkaHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        return KafkaHandle

    @property
    def ledger(self) -> str:
        """The ledger's topic."""
        return self.ledger_topic or f"twopc-ledger-{self.name}"

    @property
    def transaction_timeout_ms(self) -> int:
        """How long the brokers let one of this sink's transactions stay open."""
        return options.transaction_timeout_ms(self._parsed())

    @property
    def reserve_ms(self) -> float:
        """What must be left of that time when the decision is taken."""
        return min(_RESERVE_MAX_MS, self.transaction_timeout_ms / 4)

    @property
    def prepare_timeout_ms(self) -> float:
        """See :class:`TwoPhaseCommitSink`."""
        return self.transaction_timeout_ms - self.reserve_ms

    @property
    def takes_dead_letters(self) -> bool:
        """See :class:`TwoPhaseCommitSink`."""
        return self.topic is not None

    def choose_columns(self, schema: pa.Schema) -> Sequence[SinkColumn]:
        """See :class:`TwoPhaseCommitSink`: the columns of Spark's own Kafka writer, and ``timestamp``."""
        from sinks.kafka.columns import kafka_columns  # noqa: PLC0415 - executors choose none

        return kafka_columns(schema, has_topic=self.topic is not None)

    def check(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. What only brokers know (a topic's own limits, its partitions) is not looked at."""
        from sinks.kafka.records import require_writable  # noqa: PLC0415 - only where bad records become dead letters

        max_bytes = int(self._parsed().get("message.max.bytes", _MESSAGE_MAX_BYTES))
        require_writable(rows, has_topic=self.topic is not None, max_bytes=max_bytes)

    def create_writer(self, task: TaskAttempt) -> KafkaWriter:
        """See :class:`TwoPhaseCommitSink`."""
        config = options.producer_config(self.bootstrap_servers, self._parsed())
        key = PoolKey(self.name, task.driver_epoch, self.ledger, tuple(sorted(config.items())))
        pool = pool_for(key, timeout_ms=self.timeout_ms)
        return KafkaWriter(task, pool, topic=self.topic, ledger=self.ledger, timeout_ms=self.timeout_ms)

    def create_committer(self) -> KafkaCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        from sinks.kafka.committer import KafkaCommitter  # noqa: PLC0415 - executors need no committing client

        return KafkaCommitter(self)

    def create_decision_log(self) -> KafkaDecisionLog:
        """The ledger, not yet taken over."""
        from sinks.kafka.decision_log import KafkaDecisionLog  # noqa: PLC0415 - the same

        return KafkaDecisionLog(self.name, self.ledger, self.bootstrap_servers, self._parsed(), self.timeout_ms)

    def committing_config(self) -> dict[str, Any]:
        """The connection of the client that commits."""
        config = options.committing_config(self.bootstrap_servers, self._parsed())
        # Half, so that one silent broker does not use up the time in which another would answer.
        return {**config, "request_timeout_ms": self.timeout_ms / 2, "bootstrap_timeout_ms": self.timeout_ms}

    def _parsed(self) -> dict[str, Any]:
        return {name.removeprefix(options.PREFIX): value for name, value in self.options.items()}
