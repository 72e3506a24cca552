"""The product's own code, with the outside world taken away: clients, time, names and threads are the model's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tenacity
import tenacity.nap

from sinks.kafka import committer as kafka_committer
from sinks.kafka import decision_log, driver_producer, marker_search, producer_pool
from sinks.kafka import producer as kafka_producer
from sinks.kafka import reader as kafka_reader
from sinks.kafka import writer as kafka_writer
from tests.model import clients, producer
from tests.model.clock import Names, Threads, Time
from tests.model.network import NETWORK
from twopc import batch_transaction, coordinator

MARKER_PARTITIONS = 2


def _ledger_topic() -> SimpleNamespace:
    """``sinks.kafka.ledger_topic`` of a ledger that is there, and sound: settings are tested on a real broker."""
    return SimpleNamespace(
        ABSENT="absent",
        topic_id=lambda _admin, topic, **_: f"id of {topic}",
        ensure=lambda _admin, topic, **_: f"id of {topic}",
        require_safe=lambda *_args, **_: None,
        batch_limit=lambda *_args, **_: 1_000_000,
        marker_partitions=lambda *_args, **_: list(range(1, 1 + MARKER_PARTITIONS)),
    )


def install() -> None:
    """For the rest of this process, which is the simulation's alone."""
    time, names = Time(lambda: NETWORK.simulation), Names(lambda: NETWORK.simulation)
    topic = _ledger_topic()
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (kafka_committer, {"TransactionClient": clients.TransactionClient}),
        (decision_log, {"AdminClient": clients.AdminClient, "time": time, "ledger_topic": topic}),
        (driver_producer, {"Producer": producer.Producer, "time": time}),
        (marker_search, {"ledger_topic": topic, "uuid": names}),
        (kafka_producer, {"Producer": producer.Producer, "time": time}),
        (producer_pool, {"threading": Threads(lambda: NETWORK.simulation), "uuid": names}),
        (kafka_reader, {"Consumer": clients.Consumer, "time": time}),
        (kafka_writer, {"time": time, "uuid": names}),
        (batch_transaction, {"time": time}),
        (coordinator, {"uuid": names}),
        (tenacity, {"time": time}),
        (tenacity.nap, {"time": time}),
    ]
    for module, replacements in replaced:
        for name, value in replacements.items():
            if not hasattr(module, name):
                raise AssertionError(f"{module.__name__} has no {name} to replace")
            setattr(module, name, value)
