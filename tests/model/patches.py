"""Runs the product's own code in the model: clients, time, names and threads are replaced by those of the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tenacity
import tenacity.nap

from tests.model import clients, producer
from tests.model.clock import Names, Threads, Time
from tests.model.network import NETWORK
from twopc import batch_transaction, coordinator, participants
from twopc.sinks.kafka import (
    acknowledged,
    batch_size,
    decision_log,
    driver_producer,
    markers,
    prepared,
    producer_pool,
    reports,
    scan_start,
)
from twopc.sinks.kafka import committer as kafka_committer
from twopc.sinks.kafka import producer as kafka_producer
from twopc.sinks.kafka import reader as kafka_reader
from twopc.sinks.kafka import writer as kafka_writer

MARKER_PARTITIONS = 2


def _ledger_topic(_admin: Any, name: str, **_: Any) -> SimpleNamespace:
    """Replaces ``twopc.sinks.kafka.ledger_topic`` by a ledger that exists and is safe; other tests check it on a real broker."""
    return SimpleNamespace(
        identity=lambda: f"id of {name}",
        ensure=lambda: None,
        require_safe=lambda: None,
        batch_limit=lambda: 1_000_000,
        marker_partitions=lambda: list(range(1, 1 + MARKER_PARTITIONS)),
    )


def _serve_nothing(_one: object) -> None:
    """The original starts a thread that never ends. In the model, nothing piles up."""


def install() -> None:
    """Patch the modules for the rest of this process, which runs nothing but the simulation."""
    time, names = Time(lambda: NETWORK.simulation), Names(lambda: NETWORK.simulation)
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (
            kafka_committer,
            {"TransactionClient": clients.TransactionClient, "warn_of_weakness": lambda *_, **__: None, "time": time},
        ),
        (prepared, {"time": time}),
        (participants, {"time": time}),
        (scan_start, {"describe": lambda *_, **__: None}),
        (decision_log, {"AdminClient": clients.AdminClient, "time": time, "LedgerTopic": _ledger_topic}),
        (driver_producer, {"Producer": producer.Producer, "time": time, "keep_serving": _serve_nothing}),
        (markers, {"uuid": names}),
        (
            kafka_producer,
            {"Producer": producer.Producer, "time": time, "librdkafka": SimpleNamespace(library=lambda: None)},
        ),
        (
            producer_pool,
            {
                "threading": Threads(lambda: NETWORK.simulation),
                "uuid": names,
                "keep_serving": _serve_nothing,
            },
        ),
        (acknowledged, {"time": time}),
        (reports, {"time": time}),
        (batch_size, {"_ask": lambda _settings, topics: dict.fromkeys(topics, (1_000_000, "max.message.bytes"))}),
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
                raise AssertionError(f"{module.__name__} has no attribute {name} to replace")
            setattr(module, name, value)
