"""The Redis sink: what its user describes. Redis, Valkey; alone, behind Sentinel, or a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sinks.redis.address import Address
from sinks.redis.calls import Safety
from sinks.redis.client import RedisLink
from sinks.redis.mappings import Mapping
from sinks.redis.writer import RedisHandle, RedisWriter
from twopc.errors import ConfigurationError
from twopc.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    import collections.abc

    import pyarrow as pa
    import redis
    from redis.cluster import RedisCluster

    from sinks.redis.committer import RedisCommitter
    from twopc.attempt import TaskAttempt

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
class RedisSink(TwoPhaseCommitSink[RedisHandle]):
    """Rows to Redis, each applied once, after the decision.

    Tasks stage their commands under ``twopc:<name>:`` where nobody reads them; after the decision scripts inside Redis
    apply them, chunk by chunk, each in one step with the marker that it is done.

    Args:
        name: names the sink across restarts. Letters, digits, ``_`` and ``-``.
        url: ``redis://user:password@host:port/database``, ``rediss://`` for TLS, ``unix://`` for a socket; of a cluster
            any node. Behind Sentinel its user, password and database count.
        mapping: what becomes of a row, one of ``sinks.redis.mappings``.
        cluster: whether it is a cluster.
        sentinels: ``(host, port)`` of each Sentinel; with ``service``.
        service: the name by which they know the primary.
        options: redis-py's keyword arguments, such as ``ssl_ca_certs``.
        wait_replicas: how many replicas must have what counts (``WAIT``).
        wait_aof: whether the primary's append-only file must have it on disk (``WAITAOF``, Redis 7.2).
        wait_timeout_ms: how long to wait for those.
        chunk_rows: commands applied in one step. Redis serves nobody else meanwhile.
        chunk_bytes: and at most so many bytes; a larger row is a step of its own.
        timeout_ms: how long one step may wait for Redis.

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
                "RedisSink(sentinels=…, service=…): give both or none, and not with cluster=True, which has no Sentinel"
            )
        owned = sorted(_OWNED & set(self.options))
        if owned:
            raise ConfigurationError(
                f"RedisSink(options=…): {owned[0]!r} is the sink's own. A command that redis-py repeats by itself is "
                "applied twice, and times are set by timeout_ms: leave it out"
            )
        object.__setattr__(self, "options", dict(self.options))
        object.__setattr__(self, "sentinels", tuple((host, int(port)) for host, port in self.sentinels))

    @property
    def handle_type(self) -> type[RedisHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        return RedisHandle

    @property
    def columns(self) -> frozenset[str]:
        """See :class:`TwoPhaseCommitSink`: those that the mapping names."""
        return self.mapping.columns

    def check(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. What a key holds in Redis is another matter: the driver looks at it."""
        self.mapping.encode(rows)

    @property
    def safety(self) -> Safety:
        """Who must have a write before it counts."""
        return Safety(self.wait_replicas, self.wait_aof, self.wait_timeout_ms)

    def create_writer(self, task: TaskAttempt) -> RedisWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return RedisWriter(task, self)

    def create_committer(self) -> RedisCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        from sinks.redis.committer import RedisCommitter  # noqa: PLC0415 - executors need no committer

        return RedisCommitter(self)

    def link(self) -> RedisLink:
        """A way to Redis of one's own, not yet connected."""
        address = Address(self.url, self.cluster, self.sentinels, self.service, self.options)
        # A socket must outlive the wait that is asked for on it.
        socket_timeout_s = (self.timeout_ms + self.wait_timeout_ms) / 1000

        def connect() -> redis.Redis | RedisCluster:
            return address.connect(socket_timeout_s=socket_timeout_s)

        return RedisLink(connect, timeout_ms=self.timeout_ms, safety=self.safety)
