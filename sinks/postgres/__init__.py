"""Write rows to a PostgreSQL table: tasks stage them, and after its decision the driver publishes a whole batch at once."""

from twopc.errors import missing_extra

try:
    from twopc.sinks.postgres.sink import PostgresSink
except ModuleNotFoundError as error:
    raise missing_extra("twopc.sinks.postgres", "postgres", error) from error

__all__ = ["PostgresSink"]
