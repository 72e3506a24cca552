"""Everything imported from the package ``hbase-driver``, in one place because the import has a side effect."""

from __future__ import annotations

import sys

_path = list(sys.path)
from hbasedriver.Connection import Connection  # noqa: E402 - sys.path is saved first
from hbasedriver.exceptions.RemoteException import RemoteException  # noqa: E402
from hbasedriver.hbase_exceptions import TableNotFoundException  # noqa: E402
from hbasedriver.master import MasterConnection  # noqa: E402
from hbasedriver.meta_server import MetaRsConnection  # noqa: E402
from hbasedriver.protobuf_py import Client_pb2, Comparator_pb2, HBase_pb2, ZooKeeper_pb2  # noqa: E402

# The package puts its own directory first on sys.path; it has modules called `test_pb2` and the like.
sys.path[:] = _path

__all__ = [
    "Client_pb2",
    "Comparator_pb2",
    "Connection",
    "HBase_pb2",
    "MasterConnection",
    "MetaRsConnection",
    "RemoteException",
    "TableNotFoundException",
    "ZooKeeper_pb2",
]
