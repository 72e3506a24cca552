"""Write rows to a PostgreSQL table. Tasks stage rows, and the driver publishes a batch's rows together after its decision."""

from twopc.errors import missing_extra

try:
    from twopc.sinks.postgres.sink import PostgresSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.postgres", "postgres", error) from error

__all__ = ["PostgresSink"]
