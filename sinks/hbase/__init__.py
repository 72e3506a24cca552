"""Rows to HBase, each applied once: tasks stage them, the driver applies them after its decision."""

from sinks.hbase.mappings import COUNTER, Append, Delete, Increment, Mapping, Put
from sinks.hbase.sink import HBaseSink

__all__ = ["COUNTER", "Append", "Delete", "HBaseSink", "Increment", "Mapping", "Put"]
