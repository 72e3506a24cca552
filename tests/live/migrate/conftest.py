"""A 0.10 broker and a Spark session for the migration tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.migrate.support import FOR_OLD_BROKERS
from tests.live.spark_support import spark as one_session
from twopc.integration.services.old_kafka import LocalOldKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["one_session"]


@pytest.fixture(scope="session")
def old_kafka() -> Iterator[LocalOldKafka]:
    """A 0.10 broker shared by all tests in the run; it is running again when a test that harms it ends."""
    with LocalOldKafka() as kafka:
        yield kafka


@pytest.fixture
def fragile_old_kafka(old_kafka: LocalOldKafka) -> Iterator[LocalOldKafka]:
    """The shared broker, for a test that kills it."""
    yield old_kafka
    if not old_kafka.is_running:
        old_kafka.start()


@pytest.fixture
def spark(one_session: SparkSession) -> Iterator[SparkSession]:
    """This process's only session, set to read from 0.10. Creating a second session would only return the first one."""
    for name, value in FOR_OLD_BROKERS.items():
        one_session.conf.set(name, value)
    yield one_session
    for name in FOR_OLD_BROKERS:
        one_session.conf.unset(name)
