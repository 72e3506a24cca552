"""The arguments of a Redis sink, checked. :class:`sinks.redis.RedisSink` documents them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sinks.redis.address import Address
from sinks.redis.calls import Safety
from sinks.redis.client import RedisClient
from sinks.redis.mappings import Mapping
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    import collections.abc

    import redis
    from redis.cluster import RedisCluster

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_SCHEMES: Final = ("redis", "rediss", "unix")
#: Options of redis-py that the protocol sets itself, or that would change what answers mean.
_OWNED: Final = frozenset(
    {
        "retry", "retry_on_timeout", "retry_on_error", "decode_responses", "connection_pool", "single_connection_client",
        "cache", "cache_config", "socket_timeout", "cluster_error_retry_attempts", "read_from_replicas",
        "load_balancing_strategy", "host", "port",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RedisSettings:
    """What a writer and a committer have to know.

    Raises:
        ConfigurationError: names the argument or option, and what to give instead.
    """

    name: str
    url: str = field(repr=False)  # may hold a password
    mapping: Mapping
    cluster: bool = False
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    options: collections.abc.Mapping[str, Any] = field(default_factory=dict, repr=False)
    wait_replicas: int = 0
    wait_aof: bool = False
    wait_timeout_ms: int = 1_000
    chunk_rows: int = 1_000
    chunk_bytes: int = 262_144
    timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"RedisSink(name={self.name!r}): use 1 to 100 letters, digits, '_' or '-'")
        if urlsplit(self.url).scheme not in _SCHEMES:
            raise ConfigurationError("RedisSink(url=…): begin it with redis://, rediss:// (TLS) or unix://")
        if not isinstance(self.mapping, Mapping):
            raise ConfigurationError(
                f"RedisSink(mapping={self.mapping!r}): give one of sinks.redis.mappings, such as "
                "Set(key='total:{id}', value='sum')"
            )
        for argument in ("wait_timeout_ms", "chunk_rows", "chunk_bytes", "timeout_ms"):
            if getattr(self, argument) <= 0:
                raise ConfigurationError(f"RedisSink({argument}={getattr(self, argument)}): give a positive number")
        if self.wait_replicas < 0:
            raise ConfigurationError(f"RedisSink(wait_replicas={self.wait_replicas}): give 0 or the number of replicas")
        if bool(self.sentinels) != bool(self.service) or (self.sentinels and self.cluster):
            raise ConfigurationError(
                "RedisSink(sentinels=…, service=…): give both or neither, and not with cluster=True: a cluster has no Sentinel"
            )
        owned = sorted(_OWNED & set(self.options))
        if owned:
            raise ConfigurationError(
                f"RedisSink(options=…): {owned[0]!r} is the sink's own. redis-py's retries would apply a command twice, and "
                "timeout_ms sets the times: leave it out"
            )
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "sentinels", tuple((host, int(port)) for host, port in self.sentinels))

    @property
    def safety(self) -> Safety:
        """Who must have a write before it counts."""
        return Safety(self.wait_replicas, self.wait_aof, self.wait_timeout_ms)

    def create_client(self) -> RedisClient:
        """A client of the caller's own, not yet connected."""
        address = Address(self.url, self.cluster, self.sentinels, self.service, self.options)
        # A socket must outlive the WAIT that it carries.
        socket_timeout_s = (self.timeout_ms + self.wait_timeout_ms) / 1000

        def connect() -> redis.Redis | RedisCluster:
            return address.connect(socket_timeout_s=socket_timeout_s)

        return RedisClient(connect, timeout_ms=self.timeout_ms, safety=self.safety)
