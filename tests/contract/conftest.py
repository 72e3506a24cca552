"""Fixtures for the cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.hbase.conftest import _shared_store, hbase_server, store
from tests.live.iceberg.conftest import rest_catalogs, rest_warehouse, s3_server, s3_warehouse
from tests.live.postgres.conftest import postgres_server
from tests.live.redis.conftest import redis_cluster, redis_server
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
