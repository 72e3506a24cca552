"""Fixtures for the tests that use a real Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.live.lending import lent
from tests.live.redis.services import RedisService, chosen, redis_service
from twopc.integration.services import redis as local_redis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twopc.integration.services.redis import LocalRedis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisService]:
    """A real Redis shared by all tests in the run. Use your own sink names and keys."""
    with redis_service(chosen()) as service:
        yield service


@pytest.fixture
def local_redis_server(redis_server: RedisService) -> Iterator[LocalRedis]:
    """The shared server, for a test that kills, pauses or reconfigures it; it is running again when the test ends."""
    yield from lent(redis_server.local, f"TWOPC_REDIS={chosen()}")


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[list[LocalRedis]]:
    """A cluster of three primaries, shared by all tests in the run."""
    with local_redis.cluster(3) as servers:
        yield servers


@pytest.fixture
def own_cluster() -> Iterator[list[LocalRedis]]:
    """A cluster for one test, which may damage it."""
    with local_redis.cluster(3, options=local_redis.DURABLE) as servers:
        yield servers
