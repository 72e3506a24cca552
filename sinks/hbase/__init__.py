"""Rows to HBase, each applied once: staged by the tasks, applied by the driver after its decision."""

from sinks.hbase.mappings import Append, Delete, Increment, Mapping, Put
from sinks.hbase.sink import HBaseSink

__all__ = ["Append", "Delete", "HBaseSink", "Increment", "Mapping", "Put"]
