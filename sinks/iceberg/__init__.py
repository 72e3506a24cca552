"""Append rows to an Iceberg table.

Tasks write the data files, and after the decision the driver adds them in one commit.
"""

from twopc.errors import missing_extra

try:
    from twopc.sinks.iceberg.sink import IcebergSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.iceberg", "iceberg", error) from error

__all__ = ["IcebergSink"]
