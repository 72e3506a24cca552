"""Check a Redis sink's arguments and its server. :class:`twopc.sinks.redis.RedisSink` documents the arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from twopc.counted import counted
from twopc.sinks.redis.client import RedisClient, Safety
from twopc.sinks.redis.mappings import Mapping
from twopc.sinks.redis.options import require_valid, require_valid_for_sentinels
from twopc.sinks.staged.settings import StagedSettings

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Iterator

_OLDEST: Final = (6, 2)
_OLDEST_WITH_WAITAOF: Final = (7, 2)


@dataclass(frozen=True, kw_only=True)
class RedisSettings(StagedSettings):
    """See :class:`StagedSettings`."""

    positive: ClassVar = (*StagedSettings.positive, "wait_timeout_ms")

    url: str = field(repr=False)  # may contain a password
    mapping: Mapping
    cluster: bool = False
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    sentinel_options: collections.abc.Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: collections.abc.Mapping[str, Any] = field(default_factory=dict, repr=False)
    wait_replicas: int = 0
    wait_aof: bool = False
    wait_timeout_ms: int = 1_000
    chunk_bytes: int = 262_144
    timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        require_valid(self.url, self.options, cluster=self.cluster)
        self._require(
            isinstance(self.mapping, Mapping),
            "mapping",
            "pass a mapping from twopc.sinks.redis.mappings, such as Set(key='total:{id}', value='sum')",
        )
        self._require(self.wait_replicas >= 0, "wait_replicas", "set 0 or a positive number of replicas")
        self._require(
            bool(self.sentinels) == bool(self.service) and not (self.sentinels and self.cluster),
            "sentinels",
            "pass sentinels only together with service=…, and never with cluster=True, because a cluster has no Sentinel",
        )
        self._require(
            self.sentinels or not self.sentinel_options,
            "sentinel_options",
            "pass sentinel_options only together with sentinels",
        )
        require_valid_for_sentinels(self.sentinel_options)
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "sentinel_options", dict(self.sentinel_options))
        object.__setattr__(self, "sentinels", tuple((host, int(port)) for host, port in self.sentinels))

    def create_client(self) -> RedisClient:
        """See :class:`StagedSettings`."""
        safety = Safety(self.wait_replicas, self.wait_aof, self.wait_timeout_ms)
        return RedisClient(self.connect, timeout_ms=self.timeout_ms, safety=safety)

    def connect(self) -> redis.Redis | RedisCluster:
        """Return a redis-py client that never retries, because a retry after a lost response would apply an ``INCRBY`` twice."""
        timeout_s = self.response_timeout_s
        # WAIT and WAITAOF may each delay a response by ``wait_timeout_ms``.
        timeout_s += (bool(self.wait_replicas) + self.wait_aof) * self.wait_timeout_ms / 1000
        common = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, **self.options}
        never = Retry(NoBackoff(), 0)
        if self.cluster:
            return RedisCluster.from_url(self.url, retry=never, **common)
        if not self.sentinels:
            return redis.Redis.from_url(self.url, retry=never, **common)
        given = parse_url(self.url)  # type: ignore[no-untyped-call]
        is_tls = "connection_class" in given
        for name in ("host", "port", "path", "connection_class"):
            given.pop(name, None)
        watch = {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            **self.sentinel_options,
            "retry": never,
        }
        sentinel: Any = Sentinel(self.sentinels, sentinel_kwargs=watch)  # type: ignore[no-untyped-call]
        primary: redis.Redis = sentinel.master_for(self.service, retry=never, **{"ssl": is_tls, **common, **given})
        return primary

    def objections(self, found: collections.abc.Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
        """See :class:`StagedSettings`. Reject a server that may lose data. ``found`` is a primary's ``INFO``."""
        version = tuple(int(part) for part in str(found["redis_version"]).split(".")[:2])
        policy = found.get("maxmemory_policy", "noeviction")
        replicas = int(found.get("connected_slaves", 0))
        is_cluster = bool(found.get("cluster_enabled"))
        yield version < _OLDEST, f"Redis {found['redis_version']} is too old: use 6.2 or newer"
        yield (
            policy != "noeviction",
            f"maxmemory-policy is {policy!r}, so Redis may evict decided rows: set the policy to noeviction",
        )
        yield (
            found.get("role") != "master",
            "the url points to a replica: pass the primary's url, or sentinels=… with service=…",
        )
        yield is_cluster and not self.cluster, "the url points to a cluster: pass cluster=True"
        yield (
            self.cluster and not is_cluster,
            "cluster=True is set, but the server is not part of a cluster: remove cluster=True",
        )
        yield (
            self.wait_aof and (version < _OLDEST_WITH_WAITAOF or not found.get("aof_enabled")),
            "wait_aof=True needs Redis 7.2 or newer with appendonly yes: enable appendonly, or remove wait_aof",
        )
        yield (
            self.wait_replicas > replicas,
            (
                f"wait_replicas={self.wait_replicas}, but the primary has {counted(replicas, 'replica')}: start more replicas, "
                "or lower wait_replicas"
            ),
        )

    def cautions(self, found: collections.abc.Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
        """See :class:`StagedSettings`. A managed service may hide ``aof_enabled``."""
        yield (
            found.get("aof_enabled") == 0,
            "the server has no append-only file, so a crash of the server may lose committed rows. Set appendonly to yes",
        )
