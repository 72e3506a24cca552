"""Checks before anything is written: a server that may lose data is rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sinks.redis.settings import RedisSettings

_OLDEST: Final = (6, 2)
_OLDEST_WITH_WAITAOF: Final = (7, 2)


def objections(settings: RedisSettings, info: Mapping[str, Any]) -> Iterable[tuple[bool, str]]:
    """What ``INFO`` of a primary may show to be wrong: whether it does, and what to set."""
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    policy = info.get("maxmemory_policy", "noeviction")
    replicas = int(info.get("connected_slaves", 0))
    is_cluster = bool(info.get("cluster_enabled"))
    yield version < _OLDEST, f"Redis {info['redis_version']} is too old: use 6.2 or newer"
    yield (
        policy != "noeviction",
        f"maxmemory-policy is {policy!r}, so Redis may evict decided rows: set it to noeviction",
    )
    yield (
        info.get("role") != "master",
        "the url leads to a replica: give the url of the primary, or sentinels=… with service=…",
    )
    yield is_cluster and not settings.cluster, "the url leads to a cluster: give cluster=True"
    yield settings.cluster and not is_cluster, "cluster=True, but the server is not a cluster: leave it out"
    yield (
        settings.wait_aof and (version < _OLDEST_WITH_WAITAOF or not info.get("aof_enabled")),
        "wait_aof=True needs Redis 7.2 or newer with appendonly yes: set that, or leave wait_aof out",
    )
    yield (
        settings.wait_replicas > replicas,
        f"wait_replicas={settings.wait_replicas}, but the primary has {replicas}: start the others, or set a lower number",
    )
