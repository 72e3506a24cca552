"""Fixtures for the cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.contract.cases import SINKS
from tests.live.hbase.conftest import _shared_store, hbase_server, store
from tests.live.iceberg.conftest import rest_catalogs, rest_warehouse, s3_server, s3_warehouse
from tests.live.postgres.conftest import postgres_server
from tests.live.redis.conftest import redis_cluster, redis_server
from twopc.crash_points import POINTS
from twopc.testing import crash_points

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "_shared_store",
    "hbase_server",
    "postgres_server",
    "redis_cluster",
    "redis_server",
    "rest_catalogs",
    "rest_warehouse",
    "s3_server",
    "s3_warehouse",
    "store",
]


@pytest.fixture(autouse=True)
def _disarm_crash_points() -> Iterator[None]:
    crash_points.disarm()
    yield
    crash_points.disarm()


#: Tests that take long. `make test` runs them for one kind of each sink.
_SLOW: Final = (
    "test_another_process_commits_what_a_dead_one_prepared",
    "test_without_a_response_the_outcome_is_unknown",
    "test_an_older_copy_of_the_checkpoint_writes_nothing_and_fences_nobody",
)
_ONE_KIND: Final = ("fake", "guide", "redis-counters", "hbase-counters", "postgres-append", "iceberg", "delta", "kafka")
#: `make test` kills each sink at every third point, and each point is one of these for every third sink.
_THIRD: Final = 3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the rest of the slow tests to `make whole`."""
    sinks = [sink.values[0] for sink in SINKS]
    for item in items:
        if isinstance(item, pytest.Function) and item.path.name == "test_contract.py":
            params, number = item.callspec.params, sinks.index(item.callspec.params["case"])
            if "point" in params:
                is_sampled = (number + POINTS.index(params["point"])) % _THIRD == 0
            else:
                is_sampled = item.originalname not in _SLOW or SINKS[number].id in _ONE_KIND
            if not is_sampled:
                item.add_marker(pytest.mark.whole)
