"""Define the transactional Kafka sink that users create."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.kafka.handle import KafkaHandle
from twopc.sinks.kafka.producer_pool import drop_pool
from twopc.sinks.kafka.settings import EXACTLY_ONCE, KafkaSettings
from twopc.sinks.kafka.writer import KafkaWriter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.sink import SinkColumn
    from twopc.sinks.kafka.committer import KafkaCommitter
    from twopc.sinks.kafka.decision_log import KafkaDecisionLog


@dataclass(frozen=True, kw_only=True)
class KafkaSink(KafkaSettings, TwoPhaseCommitSink[KafkaHandle]):
    """Writes rows to Kafka exactly once. The driver commits the rows after its decision.

    Args:
        name: the sink name, which must stay the same across restarts, and the prefix of the sink's transactional ids. The
            name may contain letters, digits, ``_`` and ``-``. No other sink on the cluster may have this name, even with
            another ledger.
        bootstrap_servers: ``host:port``, or several separated by commas.
        topic: the topic for the rows. This topic overrides the ``topic`` column, as in Spark. With None, the column is used.
        options: librdkafka options with the prefix ``kafka.``, for example ``{"kafka.compression.type": "zstd"}``.
            ``kafka.transaction.timeout.ms`` (default 900000, the brokers' default maximum) limits how long a batch may take.
        ledger_topic: the topic for decisions and markers, by default ``twopc-ledger-<name>``. The sink creates the topic if it
            does not exist.
        timeout_ms: how long one step may wait for the brokers.
        other_ledgers: other topics that must not receive rows. This sink's ledger and all topics named ``twopc-ledger-…`` are
            always protected. :func:`twopc.integration.spark.exactly_once` adds the ledgers of the query's other sinks.
        guarantee: ``"EXACTLY_ONCE"`` by default. With ``"AT_LEAST_ONCE"``, the sink has no transactions, readers see rows early,
            and **a failure duplicates rows**. With ``"NONE"``, tasks do not even wait for the brokers, and **a failure loses or
            duplicates rows**. Flink's ``DeliveryGuarantee`` has the same values. See "A weaker guarantee" in
            ``docs/deployment.md``.

    Raises:
        ConfigurationError: an argument or option is invalid. The error message says what to set instead.
    """

    @property
    def handle_type(self) -> type[KafkaHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        return KafkaHandle

    @property
    def prepare_timeout_ms(self) -> float | None:
        """See :class:`TwoPhaseCommitSink`."""
        return self.transaction_timeout_ms - self.reserve_ms if self.guarantee == EXACTLY_ONCE else None

    @property
    def transactions_expire(self) -> bool:
        """See :class:`TwoPhaseCommitSink`. The sink may have had transactions before its guarantee became weaker."""
        return True

    @property
    def takes_dead_letters(self) -> bool:
        """See :class:`TwoPhaseCommitSink`."""
        return self.topic is not None

    def beside(self, others: Iterable[TwoPhaseCommitSink[Any]]) -> KafkaSink:
        """See :class:`TwoPhaseCommitSink`. A ledger may have any name, so each sink must know the other sinks' ledgers."""
        ledgers = {other.ledger for other in others if isinstance(other, KafkaSink)}
        return replace(self, other_ledgers=self.other_ledgers | ledgers)

    def choose_columns(self, schema: pa.Schema) -> Sequence[SinkColumn]:
        """See :class:`TwoPhaseCommitSink`. Choose the columns that Spark's own Kafka writer uses, plus ``timestamp``."""
        from twopc.sinks.kafka.columns import kafka_columns  # noqa: PLC0415 - executors do not choose columns

        return kafka_columns(schema, has_topic=self.topic is not None)

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. A topic's limits and partitions are not checked, because only brokers know them."""
        from twopc.sinks.kafka.columns import require_writable, texts_of  # noqa: PLC0415 - only dead letters need this

        if self.topic is None:
            topics = rows.column("topic")
            self.require_topics([*texts_of(topics.drop_null().unique()), *([None] if topics.null_count else [])])
        require_writable(rows, max_bytes=self.message_max_bytes)

    def destinations_of(self, handle: KafkaHandle) -> Collection[str]:
        """See :class:`TwoPhaseCommitSink`.

        The topics come from the handle, because the sink's topic may have changed. The handle also names the ledger, which is
        not a destination of rows.
        """
        return {f"topic {topic}" for topic in handle.topics() - {self.ledger}}

    def create_writer(self, task: TaskAttempt) -> KafkaWriter:
        """See :class:`TwoPhaseCommitSink`. A repair of decided rows always uses transactions, as the decided batch did."""
        if self.guarantee != EXACTLY_ONCE and not task.is_repair:
            from twopc.sinks.kafka.plain_writer import PlainWriter  # noqa: PLC0415 - few sinks need this module

            return PlainWriter(task, self)
        return KafkaWriter(task, self)

    def release(self, driver_epoch: int) -> None:
        """See :class:`TwoPhaseCommitSink`. Close the producers that are ready for new tasks."""
        drop_pool(self.place, driver_epoch)
        if self.guarantee != EXACTLY_ONCE:
            from twopc.sinks.kafka.plain_writer import let_go  # noqa: PLC0415 - few sinks need this module

            let_go(self)

    def create_committer(self) -> KafkaCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        from twopc.sinks.kafka.committer import KafkaCommitter  # noqa: PLC0415 - executors do not need a committing client

        return KafkaCommitter(self)

    def create_decision_log(self) -> KafkaDecisionLog:
        """Create the sink's decision log, but do not acquire it."""
        from twopc.sinks.kafka.decision_log import KafkaDecisionLog  # noqa: PLC0415 - executors do not need a committing client

        return KafkaDecisionLog(self)
