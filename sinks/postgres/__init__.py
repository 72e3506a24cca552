"""Write rows to a PostgreSQL table. Tasks stage rows, and after its decision the driver publishes all of a batch together."""

from twopc.errors import missing_extra

try:
    from twopc.sinks.postgres.sink import PostgresSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.postgres", "postgres", error) from error

__all__ = ["PostgresSink"]
