"""Check that a batch's rows can be moved from its stages into the table, and move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.sinks.postgres.errors import RowsLeftOutError, TableGoneError
from twopc.sinks.postgres.table import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from twopc.sinks.postgres.handle import PostgresHandle
    from twopc.sinks.postgres.settings import PostgresSettings
    from twopc.sinks.postgres.statements import Statements
    from twopc.sinks.postgres.target import Table

    Connection = psycopg.Connection[Any]


class Transfer:
    """Reads the stages, and fills the table, in the committer's steps.

    Attributes:
        oid: the object id of the checkpoint's table; None until it is known.
    """

    def __init__(self, settings: PostgresSettings, statements: Statements) -> None:
        self._settings = settings
        self._statements = statements
        self.oid: int | None = None

    def staged(self, step: Connection, handles: Sequence[PostgresHandle], *, unmarked: bool = False) -> dict[str, int]:
        """Return the recorded number of rows for each slice that still exists."""
        names = [handle.transaction for handle in handles]
        return dict(step.execute(self._statements.find_slices(names, unmarked=unmarked)).fetchall())

    def table(self, step: Connection) -> Table:
        """Read the table, which must still be the checkpoint's table."""
        table = read_table(step, self._settings.table)
        if self.oid not in {None, table.oid}:
            raise ConfigurationError(
                f"sink {self._settings.name!r}: {self._settings.table} was dropped and recreated, so earlier "
                "batches are missing. Nothing was decided. Rename the original table back, or use a new checkpoint and a "
                "new sink name"
            )
        return table

    def insert(self, step: Connection, handles: Sequence[PostgresHandle]) -> None:
        """Copy the stages' rows into the table."""
        try:
            table = self.table(step)
        except ConfigurationError as error:
            raise TableGoneError(
                f"{self._settings.table} no longer exists, or another table has its name: rename the original table "
                "back"
            ) from error
        publishing = self._settings.decided(table, handles[0].columns)
        names = [handle.transaction for handle in handles]
        published = step.execute(self._statements.publish(names, publishing, handles[0].filled)).rowcount
        expected = sum(handle.rows for handle in handles)
        if self._settings.mode == "append" and published != expected:
            raise RowsLeftOutError(
                f"{table.title} accepted only {published} of {expected} rows: a trigger or a rule drops the other rows"
            )

    def vote(self, step: Connection, handles: Sequence[PostgresHandle], version: int) -> None:
        """Publish undecided slices, with their markers, in a transaction that is then prepared.

        Raises:
            RetriableError: a slice was given up or is not whole.
        """
        names = [handle.transaction for handle in handles]
        insert = self._statements.insert_markers(names, version=version, state="committed")
        marked = len(step.execute(insert).fetchall())
        if min(marked, len(self.whole(step, handles))) < len(names):
            raise RetriableError(
                f"sink {self._settings.name!r}, a slice is missing. Nothing was decided, and a new attempt rewrites the batch"
            )
        self.insert(step, handles)

    def whole(self, step: Connection, handles: Sequence[PostgresHandle]) -> list[PostgresHandle]:
        """Return the handles whose stages contain all rows."""
        names = list(self.staged(step, handles))
        counted = dict(step.execute(self._statements.count(names)).fetchall()) if names else {}
        return [handle for handle in handles if counted.get(handle.transaction) == handle.rows]

    def require_distinct(self, step: Connection, table: Table, handles: Sequence[PostgresHandle]) -> None:
        """Check that no two rows of a batch have the same key.

        Raises:
            BadRecordError: two rows have the same key.
        """
        publishing = self._settings.publishing(table, handles[0].columns)
        names = [handle.transaction for handle in handles]
        row = step.execute(self._statements.find_repeated_key(names, publishing)).fetchone()
        if row is not None:
            *key, count = row
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._settings.key, key, strict=True))
            raise BadRecordError(
                f"sink {self._settings.name!r}: {count} rows of this batch have the key {shown}, and the sink cannot tell "
                "which row to keep. Nothing was decided. Pass order_by=…, or reduce the batch to one row per key"
            )
