"""Rows to Redis or Valkey, each applied once: staged by the tasks, applied by the driver after its decision."""

from sinks.redis.mappings import (
    Delete,
    Expire,
    HashIncrBy,
    HashSet,
    IncrBy,
    IncrByFloat,
    ListPush,
    Mapping,
    Set,
    SetAdd,
    SortedSetAdd,
    StreamAdd,
)
from sinks.redis.sink import RedisSink

__all__ = [
    "Delete",
    "Expire",
    "HashIncrBy",
    "HashSet",
    "IncrBy",
    "IncrByFloat",
    "ListPush",
    "Mapping",
    "RedisSink",
    "Set",
    "SetAdd",
    "SortedSetAdd",
    "StreamAdd",
]
