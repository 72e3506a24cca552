"""Fixtures for the tests that use real services."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.live import pipeline
from tests.live.lending import lent
from tests.live.services import KafkaService, chosen, kafka_service
from tests.skips import reasons_of, unknown
from twopc.integration.services.kafka import LocalKafka
from twopc.sinks.kafka import producer_pool
from twopc.sinks.kafka.client_log import client_logger
from twopc.testing.contract import drivers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SUMMARY = "summary"

# A busy machine may take longer than the 200 ms that Hypothesis allows an example.
settings.register_profile("twopc", deadline=None)
settings.load_profile("twopc")


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaService]:
    """A real Kafka shared by all tests in the run. Use your own topic names and transactional ids."""
    with kafka_service(chosen()) as service:
        yield service


@pytest.fixture
def local_kafka(kafka: KafkaService) -> Iterator[LocalKafka]:
    """The shared broker, for a test that pauses it; it runs again when the test ends. Do not kill it: its session is long."""
    yield from lent(kafka.local, f"TWOPC_SERVICES={chosen()}")


@pytest.fixture
def fresh_kafka() -> Iterator[LocalKafka]:
    """A separate broker that the test may kill. Do not pause it: its session is short, see `KEEPS_ITS_SESSION`."""
    if chosen() != "local":
        pytest.skip(f"this test needs a broker that it may kill, but TWOPC_SERVICES is {chosen()}, not 'local'")
    with LocalKafka() as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def _close_leftovers() -> Iterator[None]:
    """Close drivers and drop ready producers, which would otherwise keep looking for a broker that has ended."""
    yield
    while pipeline.opened:
        pipeline.opened.pop().close()
    drivers.close_opened()
    producer_pool._pools.clear()


class _OnlyUsed(logging.Filter):
    """Drop what idle clients log: a client of an earlier test may still look for a broker that has ended."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.threadName).startswith("twopc-idle-clients")


@pytest.fixture(autouse=True)
def _silence_idle_clients() -> Iterator[None]:
    only_used = _OnlyUsed()
    client_logger.addFilter(only_used)
    yield
    client_logger.removeFilter(only_used)


@pytest.fixture
def add_summary(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a test's seed and actions when all tests have ended, even if the test passed."""
    return lambda text: record_property(_SUMMARY, text)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let the run fail if a test was skipped for a new reason."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")  # its reports go to the process that counts them
    if not is_worker and reporter is not None and session.exitstatus == pytest.ExitCode.OK and _new_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _new_skips(reporter: pytest.TerminalReporter) -> list[str]:
    return unknown(reasons_of(reporter.getreports("skipped")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the summaries; with several pytest workers, a test's own output is not shown."""
    for reason in _new_skips(terminalreporter):
        terminalreporter.write_line(f"A test was skipped for a new reason: {reason}. See tests/skips.py", red=True)
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    for report in reports:
        for name, text in getattr(report, "user_properties", ()):
            if name == _SUMMARY and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {text}")
