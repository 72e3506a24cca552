"""Fixtures of the tests that talk to real services."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.services.kafka import LocalKafka
from sinks.kafka import producer_pool
from tests.live import pipeline
from tests.live.lending import lent
from tests.live.services import KafkaService, chosen, kafka_service
from twopc.testing.contract import drivers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOLD = "told"


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaService]:
    """A real Kafka shared by all tests of the run: use topic names and transactional ids of your own."""
    with kafka_service(chosen()) as service:
        yield service


@pytest.fixture
def local_kafka(kafka: KafkaService) -> Iterator[LocalKafka]:
    """The shared broker for a test that kills or pauses it; it runs again for the tests that follow."""
    yield from lent(kafka.local, f"TWOPC_SERVICES={chosen()}")


@pytest.fixture
def fresh_kafka() -> Iterator[LocalKafka]:
    """A broker of its own, for a test that kills it: the shared one has all the tests' topics to recover."""
    if chosen() != "local":
        pytest.skip(f"needs a broker it may kill: TWOPC_SERVICES={chosen()}, not 'local'")
    with LocalKafka() as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Close drivers and drop ready producers: they would keep looking for a broker that has ended."""
    yield
    while pipeline.opened:
        pipeline.opened.pop().close()
    drivers.close_opened()
    producer_pool._pools.clear()


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say something that is printed at the end whatever becomes of the test: its seed, and what it did."""
    return lambda text: record_property(_TOLD, text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it; with several pytest workers nothing that a test prints itself is seen."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    for report in reports:
        for name, text in getattr(report, "user_properties", ()):
            if name == _TOLD and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {text}")
