"""Rows to Redis or Valkey, each applied once: tasks stage them, the driver applies them after its decision."""

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
