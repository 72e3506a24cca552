"""Write each row to Redis or Valkey exactly once. Tasks stage the rows, and the driver applies them after its decision."""

from twopc.errors import missing_extra

try:
    from twopc.sinks.redis.mappings import (
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
    from twopc.sinks.redis.sink import RedisSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.redis", "redis", error) from error

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
