"""Connect to the target of the checks: the sink as the query will use it, and its output topics. The clients only read."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from twopc.errors import RetriableError
from twopc.integration.preflight.stand_in import stand_in_for
from twopc.sinks.kafka.broker_connection import BrokerConnection
from twopc.sinks.kafka.transactions import BrokersTooOldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twopc.sinks.kafka import KafkaSink

_ASKED_S: Final = 5.0
_LOGGED: Final = 6  # librdkafka logs a closed connection at the level INFO


class Target:
    """The sink and its cluster.

    The target's clients never acquire the sink, so they do not disturb a query that uses the sink's name.
    """

    def __init__(self, sink: KafkaSink, topics: Sequence[str]) -> None:
        """Connect.

        Raises:
            ConfigurationError: an argument is wrong.
            BrokersTooOldError: the brokers are too old for all other checks.
            TwoPhaseCommitError: no broker responds.
        """
        for topic in topics:
            dataclasses.replace(sink, topic=topic)  # rejects a ledger's name, and a name that no topic can have
        self.sink = sink
        self.stand_in = stand_in_for(sink)
        self.topics = tuple(dict.fromkeys(topics))
        # Create this client first, because it reports an unreachable broker in one line, but librdkafka would log every
        # attempt.
        try:
            self.brokers = BrokerConnection(sink.committing_config())
        except RetriableError as error:
            if reason := _reason(sink):
                raise type(error)(f"{error}. librdkafka's error: {reason}") from error
            raise
        try:
            self.committer = sink.create_committer()
        except BrokersTooOldError:
            self.brokers.close()
            raise
        self.log = self.committer.decision_log()
        self.admin = self.log.admin

    def close(self) -> None:
        """Close the connections."""
        self.committer.close()
        self.brokers.close()
        del self.admin


def _reason(sink: KafkaSink) -> str:
    """Return the reason that librdkafka logs for the missing response, such as a wrong password.

    Return "" if librdkafka logs no reason.
    """
    said: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR or "FAIL" in record.getMessage():
                said.append(record.getMessage().rpartition("]: ")[2])

    told: Any = {"logger": logging.Logger("asked"), "log_level": _LOGGED}  # noqa: LOG001 - a logger for this call only
    told["logger"].addHandler(Collector())
    client = AdminClient({**sink.connection_config(), **told})
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=_ASKED_S)
    client.poll(0)  # only this call delivers the log lines
    return max(said, key=len, default="")
