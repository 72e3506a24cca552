"""Check a Kafka sink's arguments, and derive the options for the clients.

:class:`twopc.sinks.kafka.KafkaSink` documents the arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import confluent_kafka

from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks.arguments import is_positive
from twopc.sinks.kafka import options
from twopc.sinks.kafka.servers import servers_of
from twopc.sinks.sink_names import is_sink_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOPIC_RULE: Final = "Use 1 to 249 letters, digits, '.', '_' or '-', but not just '.' or '..'"
#: Source: Kafka's ``Topic.java``.
_TOPIC: Final = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}")
#: The prefix of a ledger's name, unless the user names the ledger.
LEDGERS: Final = "twopc-ledger-"
#: Kafka's internal topics. Brokers reject rows for these topics, but only when they receive the rows.
_INTERNAL: Final = frozenset({"__transaction_state", "__consumer_offsets"})
#: The same limit as in Spark's own sink. The Java producer sends up to 1048494 bytes of key and value (max.request.size=1048576
#: minus an overhead of 82), and brokers accept that by default. The librdkafka default is 1000000.
_MESSAGE_MAX_BYTES: Final = 1_048_494 + 36
_QUEUE_KIB: Final = 32_768
#: The brokers' default maximum (transaction.max.timeout.ms). With the librdkafka default of 60 s, more transactions would be lost
#: (rule 9).
_TRANSACTION_TIMEOUT_MS: Final = 900_000
_SHORTEST_TRANSACTION_MS: Final = 2_000
_RESERVE_MAX_MS: Final = 30_000
EXACTLY_ONCE: Final = "EXACTLY_ONCE"
AT_LEAST_ONCE: Final = "AT_LEAST_ONCE"
_GUARANTEES: Final = (EXACTLY_ONCE, AT_LEAST_ONCE, "NONE")


class Place(NamedTuple):
    """A sink and its servers. A process may write to sinks with the same name on several clusters."""

    sink: str
    ledger: str
    servers: str


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """The settings that all parts of a sink share."""

    name: str
    bootstrap_servers: str
    topic: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the value may contain passwords
    ledger_topic: str | None = None
    timeout_ms: int = 30_000
    other_ledgers: frozenset[str] = field(default=frozenset(), repr=False)
    guarantee: str = EXACTLY_ONCE

    def __post_init__(self) -> None:
        if not is_sink_name(self.name):
            raise ConfigurationError(
                f"KafkaSink(name={self.name!r}): this is not a valid sink name. Use 1 to 100 letters, digits, '_' or "
                "'-'. A dot is not allowed, because it separates the parts of transactional ids"
            )
        for argument, topic in (("topic", self.topic), ("ledger_topic", self.ledger_topic)):
            if topic is not None and not _TOPIC.fullmatch(topic):
                raise ConfigurationError(
                    f"KafkaSink({argument}={topic!r}): this is not a valid topic name. {_TOPIC_RULE}"
                )
        if self.topic is not None and self._is_reserved(self.topic):
            raise ConfigurationError(
                f"KafkaSink(topic={self.topic!r}): this topic is a ledger or one of Kafka's internal topics. Set "
                "another topic for the rows"
            )
        if not is_positive(self.timeout_ms):
            raise ConfigurationError(
                f"KafkaSink(timeout_ms={self.timeout_ms!r}): timeout_ms must be a positive number of milliseconds"
            )
        if self.guarantee not in _GUARANTEES:
            raise ConfigurationError(
                f"KafkaSink(guarantee={self.guarantee!r}): guarantee must be one of {', '.join(_GUARANTEES)}"
            )
        options.check(self.options)
        object.__setattr__(self, "options", options.with_tokens(self.options))
        self.servers()
        self._require_accepted()
        self._require_room()
        if self.transaction_timeout_ms < _SHORTEST_TRANSACTION_MS:
            raise ConfigurationError(
                f"option 'kafka.transaction.timeout.ms'={self.transaction_timeout_ms} is too short, because a batch must be "
                f"written and committed within that time. Set the option to at least {_SHORTEST_TRANSACTION_MS} ms, "
                "preferably several minutes"
            )
        self.committing_config()

    def _require_accepted(self) -> None:
        """Let librdkafka check the options, without connecting to a broker."""
        try:
            config = options.without_network(self.producer_config())
            confluent_kafka.Producer({**config, "bootstrap.servers": "", "transactional.id": "check", "log_level": 0})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            reason = error.args[0].str() if isinstance(error, confluent_kafka.KafkaException) else str(error)
            raise ConfigurationError(
                f"librdkafka rejects one of the options {sorted(self.options)}: {reason}. Correct or remove that option"
            ) from error

    @property
    def ledger(self) -> str:
        """The topic for decisions and markers."""
        return self.ledger_topic or f"{LEDGERS}{self.name}"

    @property
    def place(self) -> Place:
        """What distinguishes this sink from a sink with the same name on another cluster. No broker is contacted."""
        return Place(self.name, self.ledger, ",".join(self.servers()))

    def require_topics(self, topics: Iterable[str | None]) -> None:
        """Check the rows' ``topic`` column. If a row went to a ledger, the driver would read the row as a damaged decision.

        Raises:
            BadRecordError: a topic is null or not valid, or must not receive rows.
        """
        for topic in topics:
            if topic is None:
                raise BadRecordError(
                    "the sink has no topic, and a row's 'topic' column is null. Fill the column, or pass topic=… to KafkaSink"
                )
            if not _TOPIC.fullmatch(topic):  # librdkafka would cut the name off at a NUL character, and write elsewhere
                raise BadRecordError(f"{topic!r} in the 'topic' column is not a valid topic name. {_TOPIC_RULE}")
            if self._is_reserved(topic):
                raise BadRecordError(
                    f"{topic!r} in the 'topic' column is a ledger or one of Kafka's internal topics, and a row would corrupt "
                    "that topic's records. Fix the column"
                )

    def _is_reserved(self, topic: str) -> bool:
        return topic in _INTERNAL | self.other_ledgers | {self.ledger} or topic.startswith(LEDGERS)

    @property
    def client_options(self) -> dict[str, Any]:
        """The user's options in librdkafka's format."""
        return options.without_prefix(self.options)

    @property
    def transaction_timeout_ms(self) -> int:
        """How long the brokers let the sink's transactions stay open, in ms."""
        return int(self.client_options.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS))

    @property
    def message_max_bytes(self) -> int:
        """The maximum size of a record in bytes. librdkafka counts the key, the value, the headers and 36 more bytes."""
        return int(self.client_options.get("message.max.bytes", _MESSAGE_MAX_BYTES))

    @property
    def _largest_value_kib(self) -> int:
        return -(-self.message_max_bytes // 1024)

    def _require_room(self) -> None:
        """Reject a queue that cannot hold the largest record. librdkafka would report even the empty queue as full."""
        chosen = self.client_options.get("queue.buffering.max.kbytes")
        if chosen is not None and int(chosen) < self._largest_value_kib:
            raise ConfigurationError(
                f"option 'kafka.queue.buffering.max.kbytes'={chosen} is too small: a record may take up "
                f"{self.message_max_bytes} bytes (kafka.message.max.bytes). Set this option to at least "
                f"{self._largest_value_kib}, or lower kafka.message.max.bytes"
            )

    @property
    def reserve_ms(self) -> float:
        """How much of the transaction timeout must be left at the decision, in ms."""
        return min(_RESERVE_MAX_MS, self.transaction_timeout_ms / 4)

    def producer_config(self) -> dict[str, Any]:
        """Return the options for librdkafka clients that write in transactions."""
        return {
            # This is the Java client's partitioner, so keys stay in the same partitions as with Spark's own sink.
            "partitioner": "murmur2_random",
            "linger.ms": "5",
            # This option limits a task's memory; the librdkafka default is 1 GiB. It counts values, without keys and headers
            # (rd_kafka_msg_new0 in rdkafka_msg.c).
            "queue.buffering.max.kbytes": str(max(_QUEUE_KIB, self._largest_value_kib)),
            "queue.buffering.max.messages": "200000",
            # If an unknown topic does not appear within this time, its records fail; the librdkafka default is 30 s.
            "topic.metadata.propagation.max.ms": "10000",
            "message.max.bytes": str(self.message_max_bytes),
            **self.client_options,
            "bootstrap.servers": ",".join(self.servers()),
            "transaction.timeout.ms": str(self.transaction_timeout_ms),
            # A record cannot be delivered after its transaction has timed out.
            "message.timeout.ms": str(self.transaction_timeout_ms),
            "enable.idempotence": "true",
            "acks": "all",
        }

    def servers(self) -> tuple[str, ...]:
        """List the servers in ``bootstrap_servers``; see :func:`~twopc.sinks.kafka.servers.servers_of`."""
        return servers_of(self.bootstrap_servers, str(self.client_options.get("security.protocol", "PLAINTEXT")))

    def plain_config(self) -> dict[str, Any]:
        """Return the options for librdkafka clients that write without transactions."""
        return {name: value for name, value in self.producer_config().items() if name != "transaction.timeout.ms"}

    def connection_config(self) -> dict[str, Any]:
        """Return the options for librdkafka clients that read or administer."""
        return {**options.for_librdkafka(self.client_options), "bootstrap.servers": ",".join(self.servers())}

    def committing_config(self) -> dict[str, Any]:
        """Return the options for kafka-python, the client that commits prepared transactions."""
        return {
            **options.for_kafka_python(self.client_options),
            "bootstrap_servers": list(self.servers()),
            # Wait for a silent broker for half of the time, so that another broker can still respond.
            "request_timeout_ms": self.timeout_ms / 2,
            "bootstrap_timeout_ms": self.timeout_ms,
        }
