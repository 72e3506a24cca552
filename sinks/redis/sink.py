"""Define the Redis sink that users create.

The sink writes to standalone Redis or Valkey, to servers behind Sentinel, or to a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.columns import no_rows
from twopc.sinks.redis.committer import RedisCommitter
from twopc.sinks.redis.keys import RedisHandle
from twopc.sinks.redis.settings import RedisSettings
from twopc.sinks.redis.writer import RedisWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class RedisSink(RedisSettings, TwoPhaseCommitSink[RedisHandle]):
    """Writes each row to Redis exactly once.

    Tasks stage their commands under ``twopc:<name>:``, which no reader uses. After the decision, scripts inside Redis apply the
    commands chunk by chunk, each chunk in one atomic step with its marker.

    Args:
        name: the sink name, which must stay the same across restarts. A name may contain letters, digits, ``_`` and ``-``.
        url: ``redis://user:password@host:port/database``, ``rediss://`` for TLS, or ``unix://`` for a socket. For a cluster,
            pass any node. With Sentinel, only the user, password and database are used.
        mapping: how to convert rows to commands; an instance of a class from ``twopc.sinks.redis.mappings``.
        cluster: whether Redis is a cluster.
        sentinels: ``(host, port)`` of each Sentinel; requires ``service``.
        service: the name of the primary in Sentinel.
        sentinel_options: redis-py keyword arguments for the connections to the Sentinels, such as ``password``; ``ssl=True`` for
            TLS. The user and password in ``url`` are not sent to the Sentinels.
        options: redis-py keyword arguments, such as ``ssl_ca_certs``.
        wait_replicas: the number of replicas that must have a write before the sink treats it as safe (``WAIT``).
        wait_aof: whether a write must also be on the primary's disk, in its append-only file (``WAITAOF``, Redis 7.2).
        wait_timeout_ms: how long to wait for the replicas, and then for the disk.
        chunk_rows: the maximum number of commands in one step. During a step, Redis serves no other client.
        chunk_bytes: the maximum size of one step in bytes. A larger row is applied in its own step.
        timeout_ms: how long one step may wait for Redis. After a third of this time without a response, the sink sends the
            request again.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    handle_type = RedisHandle
    keeps_task_order = True

    def check_schema(self, schema: pa.Schema) -> None:
        """See :class:`TwoPhaseCommitSink`."""
        self.mapping.encode(no_rows(schema))

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. The driver checks the keys' contents in Redis before the decision."""
        self.mapping.encode(rows)

    def create_writer(self, task: TaskAttempt) -> RedisWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return RedisWriter(task, self)

    def create_committer(self) -> RedisCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return RedisCommitter(self)
