"""Define the PostgreSQL sink that users create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.postgres.committer import PostgresCommitter
from twopc.sinks.postgres.handle import PostgresHandle
from twopc.sinks.postgres.settings import PostgresSettings, row_format
from twopc.sinks.postgres.writer import PostgresWriter

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from twopc.attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class PostgresSink(PostgresSettings, TwoPhaseCommitSink[PostgresHandle]):
    """Writes rows to a PostgreSQL table. All rows of a batch become visible together.

    Each task copies its rows into a separate table that no reader uses. After the decision, the driver moves all rows in one
    transaction.

    Args:
        name: the sink name, which must stay the same across restarts. A name may contain letters, digits, ``_`` and
            ``-``.
        dsn: a libpq connection string: ``postgresql://user:password@host:port/database?sslmode=verify-full``, or
            ``host=… dbname=…``.
        table: the table name in SQL: ``schema.table``, with ``"…"`` around a name with capital letters. The rows' columns
            must have the same names as the table's columns.
        mode: ``append`` inserts every row. ``upsert`` updates an existing row with the same key, and inserts all other rows.
        key: with ``upsert``, the columns of one of the table's unique indexes.
        order_by: with ``upsert``, if several rows of a batch have the same key, the row with the greatest values in these
            columns wins. Without ``order_by``, the sink rejects a batch in which several rows have the same key.
        vote: with ``staged``, a batch may be decided after its rows are staged, and the sink rejects a table that could still
            reject these rows. With ``prepared``, the driver publishes before the decision, in a transaction that it prepares
            on the server, so the sink accepts any table. The server's ``max_prepared_transactions`` must allow one
            transaction for each sink.
        schema: the schema for the sink's own tables. Several sinks may share a schema. The sink creates the schema if the
            role may do so.
        timeout_ms: how long one of the driver's transactions may take, for example to publish a batch, and how long a task
            waits for one response.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    handle_type = PostgresHandle

    @property
    def only_appends(self) -> bool:
        """See :class:`TwoPhaseCommitSink`."""
        return self.mode == "append"

    def check_schema(self, schema: pa.Schema) -> None:
        """See :class:`TwoPhaseCommitSink`. Read the table's definition at most once every 30 s."""
        row_format(self, schema)

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`.

        This check does not find every bad row. For example, only PostgreSQL can detect a row that violates a CHECK constraint.
        """
        row_format(self, rows.schema).check(rows)

    def destinations_of(self, handle: PostgresHandle) -> Collection[str]:
        """See :class:`TwoPhaseCommitSink`. If the mode has changed, a repair would upsert some of an appended batch's rows."""
        settings = {"mode": handle.mode, "key": handle.key, "order_by": handle.order_by}
        said = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value)
        return {f"table {self.table} with {said}"}

    def create_writer(self, task: TaskAttempt) -> PostgresWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return PostgresWriter(task, self)

    def create_committer(self) -> PostgresCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return PostgresCommitter(self)
