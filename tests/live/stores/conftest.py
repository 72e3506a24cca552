"""The servers of these tests, shared by all tests in the run."""

from __future__ import annotations

from tests.live.postgres.conftest import postgres_server
from tests.live.redis.conftest import redis_server

__all__ = ["postgres_server", "redis_server"]
