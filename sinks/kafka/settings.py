"""A sink's settings as its parts need them: plain values, so that no part imports the sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sinks.kafka import options

if TYPE_CHECKING:
    from collections.abc import Mapping

_RESERVE_MAX_MS: Final = 30_000


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """What a user has set for a sink.

    Attributes:
        sink: the sink's name.
        bootstrap_servers: ``host:port``, several with commas.
        topic: where rows go; None for each row's own column ``topic``.
        ledger: the topic of decisions and markers.
        options: librdkafka's options, as :func:`sinks.kafka.options.bare` gives them; may hold passwords.
        timeout_ms: how long one step may wait for the brokers.
    """

    sink: str
    bootstrap_servers: str
    topic: str | None
    ledger: str
    options: Mapping[str, Any] = field(repr=False)
    timeout_ms: int

    @property
    def transaction_timeout_ms(self) -> int:
        """How long the brokers let one of the sink's transactions stay open."""
        return options.transaction_timeout_ms(self.options)

    @property
    def reserve_ms(self) -> float:
        """How much of that time must be left when the batch is decided."""
        return min(_RESERVE_MAX_MS, self.transaction_timeout_ms / 4)

    def producer_config(self) -> dict[str, Any]:
        """For librdkafka clients that write."""
        return options.producer_config(self.bootstrap_servers, self.options)

    def connection_config(self) -> dict[str, Any]:
        """For librdkafka clients that read or administrate."""
        return options.connection_config(self.bootstrap_servers, self.options)

    def committing_config(self) -> dict[str, Any]:
        """For the client that commits prepared transactions, which is kafka-python's."""
        config = options.committing_config(self.bootstrap_servers, self.options)
        # Half of the time, so that another broker can respond after a silent one.
        return {**config, "request_timeout_ms": self.timeout_ms / 2, "bootstrap_timeout_ms": self.timeout_ms}
