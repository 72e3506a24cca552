"""Write each row to HBase exactly once. Tasks stage the rows, and the driver applies them after its decision."""

from twopc.errors import missing_extra

try:
    from twopc.sinks.hbase.mappings import COUNTER, Append, Delete, Increment, Mapping, Put
    from twopc.sinks.hbase.sink import HBaseSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.hbase", "hbase", error) from error

__all__ = ["COUNTER", "Append", "Delete", "HBaseSink", "Increment", "Mapping", "Put"]
