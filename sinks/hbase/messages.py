"""Import ``hbase-driver``'s connection classes, and its protobuf messages, which are generated from HBase's definitions.

No other module imports the package, because the import has a side effect.
"""

from __future__ import annotations

import sys
from typing import Any

_path = list(sys.path)
from hbasedriver.Connection import Connection  # noqa: E402 - sys.path is saved first
from hbasedriver.exceptions.RemoteException import RemoteException  # noqa: E402
from hbasedriver.hbase_exceptions import TableNotFoundException  # noqa: E402
from hbasedriver.master import MasterConnection  # noqa: E402
from hbasedriver.meta_server import MetaRsConnection  # noqa: E402
from hbasedriver.protobuf_py import Client_pb2 as client_pb  # noqa: E402
from hbasedriver.protobuf_py import Comparator_pb2 as comparator_pb  # noqa: E402
from hbasedriver.protobuf_py import Filter_pb2 as filter_pb  # noqa: E402
from hbasedriver.protobuf_py import HBase_pb2 as hbase_pb  # noqa: E402
from hbasedriver.protobuf_py import ZooKeeper_pb2 as zookeeper_pb  # noqa: E402

# The package puts its own directory first on sys.path. That directory contains modules with names such as `test_pb2`.
sys.path[:] = _path

__all__ = [
    "Connection",
    "MasterConnection",
    "MetaRsConnection",
    "RemoteException",
    "TableNotFoundException",
    "client_pb",
    "comparator_pb",
    "filter_pb",
    "hbase_pb",
    "zookeeper_pb",
]

Message = Any
"""A protobuf message. The generated classes have no type hints."""


def region(name: bytes) -> Message:
    """Build a region specifier for a request."""
    return hbase_pb.RegionSpecifier(type=hbase_pb.RegionSpecifier.REGION_NAME, value=name)


def name_parts(table: str) -> tuple[bytes, bytes]:
    """Split ``namespace:table`` or ``table`` into namespace and name."""
    namespace, _, name = table.rpartition(":")
    return (namespace or "default").encode(), name.encode()
