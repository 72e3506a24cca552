"""HBase's own messages, as the package ``hbase-driver`` has generated them from HBase's definitions.

Of that package only the messages are used. Its ``Table`` makes one call a row, cannot send many conditional mutations at
once, hides timestamps, and sends with ``socket.send``, which may send a part: a sink needs more than that.
"""

from __future__ import annotations

import sys
from typing import Any

_path = list(sys.path)
from hbasedriver.protobuf_py import (  # noqa: E402 - between the two halves of a safeguard
    Client_pb2,
    Comparator_pb2,
    HBase_pb2,
    Master_pb2,
    Registry_pb2,
    RPC_pb2,
)

# The package puts its directory first where Python looks for modules; its modules are called `test_pb2` and the like.
sys.path[:] = _path

Message = Any
"""A protobuf message: the generated classes have no types."""

client, comparators, hbase, master, registry, rpc = (
    Client_pb2,
    Comparator_pb2,
    HBase_pb2,
    Master_pb2,
    Registry_pb2,
    RPC_pb2,
)

_BINARY = "org.apache.hadoop.hbase.filter.BinaryComparator"


def region(name: bytes) -> Message:
    """Names a region in a request."""
    return hbase.RegionSpecifier(type=hbase.RegionSpecifier.REGION_NAME, value=name)


def table_name(text: str) -> Message:
    """``namespace:table`` or ``table``."""
    namespace, _, name = text.rpartition(":")
    return hbase.TableName(namespace=(namespace or "default").encode(), qualifier=name.encode())


def comparator(value: bytes) -> Message:
    """Compares a cell's bytes with a value; an empty one stands for no cell."""
    inner = comparators.BinaryComparator(comparable=comparators.ByteArrayComparable(value=value))
    return comparators.Comparator(name=_BINARY, serialized_comparator=inner.SerializeToString())
