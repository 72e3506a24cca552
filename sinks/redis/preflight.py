"""What is refused before anything is written: a server that may forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sinks.redis.sink import RedisSink

_OLDEST: Final = (6, 2)
_OLDEST_WITH_WAITAOF: Final = (7, 2)


def require_usable(sink: RedisSink, facts: Iterable[Mapping[str, Any]]) -> None:
    """Check what ``INFO`` says of every primary.

    Raises:
        ConfigurationError: names the setting and what to set.
    """
    for fact in facts:
        for is_wrong, what in _objections(sink, fact):
            if is_wrong:
                raise ConfigurationError(f"sink {sink.name!r}: {what}")


def _objections(sink: RedisSink, fact: Mapping[str, Any]) -> Iterable[tuple[bool, str]]:
    version = tuple(int(part) for part in str(fact["redis_version"]).split(".")[:2])
    policy = fact.get("maxmemory_policy", "noeviction")
    replicas = int(fact.get("connected_slaves", 0))
    is_cluster = bool(fact.get("cluster_enabled"))
    yield version < _OLDEST, f"Redis {fact['redis_version']} is too old: use 6.2 or newer"
    yield (
        policy != "noeviction",
        f"maxmemory-policy is {policy!r}, so Redis may drop what is decided: set it to noeviction",
    )
    yield fact.get("role") != "master", "the url leads to a replica: give the primary's, or Sentinel's with service=…"
    yield is_cluster and not sink.cluster, "the url leads to a cluster: give cluster=True"
    yield sink.cluster and not is_cluster, "cluster=True, but the url leads to a server that is none: leave it out"
    yield (
        sink.wait_aof and (version < _OLDEST_WITH_WAITAOF or not fact.get("aof_enabled")),
        "wait_aof=True needs Redis 7.2 or newer with appendonly yes: switch that on, or leave wait_aof out",
    )
    yield (
        sink.wait_replicas > replicas,
        f"wait_replicas={sink.wait_replicas}, but the primary has {replicas}: start the others, or ask for fewer",
    )
