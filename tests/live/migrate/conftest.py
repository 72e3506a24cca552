"""The broker of 0.10, and a Spark session, for the tests of the migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.services.old_kafka import LocalOldKafka
from tests.live.spark_support import spark

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["spark"]


@pytest.fixture(scope="session")
def old_kafka() -> Iterator[LocalOldKafka]:
    """A broker of 0.10 shared by all tests of the run; it is running again when a test that harms it ends."""
    with LocalOldKafka() as kafka:
        yield kafka


@pytest.fixture
def fragile_old_kafka(old_kafka: LocalOldKafka) -> Iterator[LocalOldKafka]:
    """The shared broker, for a test that kills it."""
    yield old_kafka
    if not old_kafka.is_running:
        old_kafka.start()
