"""What is checked: a sink as its query will have it, its output topics, and clients that read from its cluster."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from integration.preflight.stand_in import stand_in_for
from sinks.kafka.broker_connection import BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sinks.kafka import KafkaSink


class Target:
    """A sink on its cluster. Its clients never acquire the sink, so that a query with its name is not disturbed."""

    def __init__(self, sink: KafkaSink, topics: Sequence[str]) -> None:
        """Connect.

        Raises:
            ConfigurationError: an argument is wrong.
            TwoPhaseCommitError: no broker responds.
        """
        for topic in topics:
            dataclasses.replace(sink, topic=topic)  # refuses a ledger, or what is no name of a topic
        self.sink = sink
        self.stand_in = stand_in_for(sink)
        self.topics = tuple(dict.fromkeys(topics))
        # This client first: it reports an unreachable broker in one line; librdkafka retries and logs every attempt.
        self.brokers = BrokerConnection(sink.committing_config())
        self.committer = sink.create_committer()
        self.log = self.committer.decision_log()
        self.admin = self.log.admin

    def close(self) -> None:
        """Close the connections."""
        self.committer.close()
        self.brokers.close()
        del self.admin
