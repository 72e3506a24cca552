"""Write a task's rows to a separate table in one transaction."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg

from twopc import control
from twopc.errors import RetriableError
from twopc.fenced_committer import transaction_name
from twopc.sinks.postgres.errors import creating_tables, explained
from twopc.sinks.postgres.handle import PostgresHandle
from twopc.sinks.postgres.rows import fit_rows
from twopc.sinks.postgres.statements import Statements
from twopc.sinks.postgres.table import fingerprint, read_table
from twopc.sinks.postgres.votes import vote_name
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.sinks.postgres.publishing import Publishing
    from twopc.sinks.postgres.rows import RowFormat
    from twopc.sinks.postgres.settings import PostgresSettings


class PostgresWriter(SinkWriter[PostgresHandle]):
    """See :class:`SinkWriter`. The stage is invisible before its COMMIT, so a task that dies leaves no stage."""

    def __init__(self, task: TaskAttempt, settings: PostgresSettings) -> None:
        self._task = task
        self._settings = settings
        self._name = transaction_name(settings.name, task)
        self._statements = Statements(settings.schema, settings.name)
        self._database = settings.database()
        self._format: RowFormat | None = None
        self._publishing: Publishing | None = None
        self._vote = ""

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        with self._explaining("beginning"):
            connection = self._database.begin()
            row = connection.execute(self._statements.load_control()).fetchone()
            record = control.decode(row[0] if row else None)
            if self._settings.vote == "prepared":
                self._vote = vote_name(connection, self._settings.name, record, self._task.attempt)
        if record.driver_epoch != self._task.driver_epoch:
            self._database.close()
            raise RetriableError(f"sink {self._settings.name!r}: a newer driver has replaced this task's driver")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. During the write, PostgreSQL checks the table's constraints."""
        with self._explaining("writing"):
            if self._format is None:
                self._format = self._create_stage(rows.schema)
            self._format.check(rows)
            copy = self._statements.copy(self._name, self._format.names)
            with self._database.connection.cursor() as cursor, cursor.copy(copy) as stream:
                for piece in self._format.copy_text(rows):
                    stream.write(piece)

    def pre_commit(self) -> PostgresHandle:
        """See :class:`SinkWriter`. The task votes by committing the rows and the slice's entry."""
        how = self._publishing
        if how is None:
            raise AssertionError("write() must be called first")
        with self._explaining("preparing"):
            self._database.connection.execute(self._statements.insert_slice(self._name, rows=self.rows))
            self._database.commit()
        self._database.close()
        return PostgresHandle(
            transaction=self._name,
            rows=self.rows,
            columns=how.written,
            filled=how.filled,
            table=fingerprint(how.table),
            vote=self._vote,
            numbers=tuple(how.table.column(name).number for name in how.written),
            mode=how.mode,
            key=how.key,
            order_by=how.order_by,
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`. If the server did not respond to COMMIT, the driver's sweep removes the slice."""
        self._database.close()

    def _create_stage(self, schema: pa.Schema) -> RowFormat:
        connection = self._database.connection
        table = read_table(connection, self._settings.table)
        found = fit_rows(schema, table, key=self._settings.key)
        publishing = self._settings.publishing(table, found.names)
        with creating_tables():
            for statement in self._statements.create_stage(self._name, publishing):
                connection.execute(statement)
        self._publishing = publishing
        return found

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            with self._database.watched():
                yield
        except psycopg.Error as error:
            self._database.close()
            raise explained(error, f"sink {self._settings.name!r}, {what} {self._name}") from error
