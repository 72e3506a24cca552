"""Append rows to a Delta table.

Tasks write the data files, and after the decision the driver adds them all in one commit.
"""

from twopc.errors import missing_extra

try:
    from twopc.sinks.delta.sink import DeltaSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.delta", "delta", error) from error

__all__ = ["DeltaSink"]
