"""HBase's own messages, as ``hbase-driver`` has generated them from HBase's definitions: what this project composes."""

from __future__ import annotations

from typing import Any

from sinks.hbase.driver import Client_pb2, Comparator_pb2, HBase_pb2

Message = Any
"""A protobuf message: the generated classes have no types."""

client, comparators, hbase = Client_pb2, Comparator_pb2, HBase_pb2

_BINARY = "org.apache.hadoop.hbase.filter.BinaryComparator"


def region(name: bytes) -> Message:
    """Names a region in a request."""
    return hbase.RegionSpecifier(type=hbase.RegionSpecifier.REGION_NAME, value=name)


def name_parts(table: str) -> tuple[bytes, bytes]:
    """Namespace and name of ``namespace:table`` or ``table``."""
    namespace, _, name = table.rpartition(":")
    return (namespace or "default").encode(), name.encode()


def comparator(value: bytes) -> Message:
    """Compares a cell's bytes with a value; an empty one stands for no cell."""
    inner = comparators.BinaryComparator(comparable=comparators.ByteArrayComparable(value=value))
    return comparators.Comparator(name=_BINARY, serialized_comparator=inner.SerializeToString())
