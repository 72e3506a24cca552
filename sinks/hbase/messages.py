"""HBase's own protobuf messages, as ``hbase-driver`` generates them from HBase's definitions."""

from __future__ import annotations

from typing import Any

from sinks.hbase.driver import Client_pb2, Comparator_pb2, HBase_pb2

Message = Any
"""A protobuf message: the generated classes have no types."""

client_pb, comparator_pb, hbase_pb = Client_pb2, Comparator_pb2, HBase_pb2

_BINARY = "org.apache.hadoop.hbase.filter.BinaryComparator"


def region(name: bytes) -> Message:
    """A region's name, for a request."""
    return hbase_pb.RegionSpecifier(type=hbase_pb.RegionSpecifier.REGION_NAME, value=name)


def name_parts(table: str) -> tuple[bytes, bytes]:
    """Namespace and name of ``namespace:table`` or ``table``."""
    namespace, _, name = table.rpartition(":")
    return (namespace or "default").encode(), name.encode()


def comparator(value: bytes) -> Message:
    """Compares a cell's bytes with a value; an empty value stands for no cell."""
    inner = comparator_pb.BinaryComparator(comparable=comparator_pb.ByteArrayComparable(value=value))
    return comparator_pb.Comparator(name=_BINARY, serialized_comparator=inner.SerializeToString())
