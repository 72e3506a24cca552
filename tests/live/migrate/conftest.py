"""The broker of 0.10, and a Spark session, for the tests of the migration."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

import pytest

from tests.live.migrate.support import FOR_OLD_BROKERS
from tests.live.spark_query import session
from twopc.integration.services.old_kafka import LocalOldKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """This process's session, which can read from 0.10."""
    spark = session(tmp_path_factory.mktemp("spark"), settings=FOR_OLD_BROKERS)
    spark.sparkContext.setLogLevel("OFF")  # tests make queries fail
    yield spark
    spark.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # PySpark leaves the sockets of collect() unclosed
