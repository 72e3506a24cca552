"""Where Redis is, and redis-py's client for it, with retries off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Address:
    """Where Redis is.

    Attributes:
        url: ``redis://``, ``rediss://`` or ``unix://``; of any node of a cluster. Behind Sentinel only user, password and
            database count.
        cluster: whether it is a cluster.
        sentinels: host and port of each Sentinel.
        service: the name by which the Sentinels know the primary.
        options: redis-py's keyword arguments.
    """

    url: str
    cluster: bool
    sentinels: tuple[tuple[str, int], ...]
    service: str
    options: Mapping[str, Any]

    def connect(self, *, socket_timeout_s: float) -> redis.Redis | RedisCluster:
        """A client that never retries: redis-py would apply an ``INCRBY`` twice after a lost answer."""
        common = {"socket_timeout": socket_timeout_s, "socket_connect_timeout": socket_timeout_s, **self.options}
        never = Retry(NoBackoff(), 0)
        if self.cluster:
            return RedisCluster.from_url(self.url, retry=never, **common)
        if self.sentinels:
            given = _untyped(parse_url)(self.url)
            is_tls = "connection_class" in given
            for name in ("host", "port", "path", "connection_class"):
                given.pop(name, None)
            sentinel = _untyped(Sentinel)(
                self.sentinels, sentinel_kwargs={"socket_timeout": socket_timeout_s, "retry": never}
            )
            primary: redis.Redis = sentinel.master_for(self.service, retry=never, **{"ssl": is_tls, **common, **given})
            return primary
        return redis.Redis.from_url(self.url, retry=never, **common)


def _untyped(function: Any) -> Any:
    """A function of redis-py without types."""
    return function
