"""Check that a batch's rows can be moved from its stages into the table, and move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twopc.errors import BadRecordError, ConfigurationError, RetriableError
from twopc.new_checkpoint import NEW_NAME
from twopc.sinks.postgres.errors import (
    ColumnAlteredError,
    ColumnDroppedError,
    ColumnRenamedError,
    KeyIndexGoneError,
    RivalIndexError,
    RowsLeftOutError,
    TableGoneError,
)
from twopc.sinks.postgres.statements import lock_table
from twopc.sinks.postgres.table import fingerprint, read_columns, read_table
from twopc.sinks.postgres.widening import keeps_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from twopc.sinks.postgres.handle import PostgresHandle
    from twopc.sinks.postgres.publishing import Publishing
    from twopc.sinks.postgres.settings import PostgresSettings
    from twopc.sinks.postgres.statements import Statements
    from twopc.sinks.postgres.target import Index, Table

    Connection = psycopg.Connection[Any]


class Transfer:
    """Reads the stages and copies their rows into the table, within the committer's steps.

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
                "batches are missing. Nothing was decided. If the original table still exists, rename it back to this name. "
                f"Otherwise, {NEW_NAME}"
            )
        return table

    def require_unaltered(self, table: Table, handles: Sequence[PostgresHandle]) -> None:
        """Check that the table has not been altered since the rows were staged.

        Raises:
            RetriableError: the table was altered.
        """
        if any(handle.table != fingerprint(table) for handle in handles):
            raise RetriableError(
                f"sink {self._settings.name!r}: {self._settings.table} was altered while this batch was being written. "
                "Nothing was decided, and a new attempt will rewrite the batch"
            )

    def vote(self, step: Connection, handles: Sequence[PostgresHandle], version: int) -> None:
        """Publish undecided slices, with their markers, in a transaction that is then prepared.

        Raises:
            RetriableError: a slice was rolled back or is incomplete, or the table was altered.
        """
        names = [handle.transaction for handle in handles]
        insert = self._statements.insert_markers(names, version=version, state="committed")
        marked = len(step.execute(insert).fetchall())
        if min(marked, len(self.whole(step, handles))) < len(names):
            raise RetriableError(
                f"sink {self._settings.name!r}: a slice of the batch is missing. Nothing was decided, and a new attempt "
                "will rewrite the batch"
            )
        table = self._locked_table(step)
        self.require_unaltered(table, handles)
        self._insert(step, table, handles)

    def publish(self, step: Connection, handles: Sequence[PostgresHandle], version: int, *, is_newest: bool) -> None:
        """Publish a decision's complete slices that have no marker yet, and mark them.

        Args:
            step: a step that holds the owner's lock.
            handles: all of the decision's slices.
            version: the decision's version.
            is_newest: whether the decision is the newest one of all queries that have used the sink. If so, an incomplete slice
                without a marker is permanently lost. The markers of earlier decisions may already have been deleted, so a
                published slice of such a decision may look lost.
        """
        whole = self.whole(step, handles)
        if is_newest:
            gone = [handle.transaction for handle in handles if handle not in whole]
            lost = step.execute(self._statements.insert_markers(gone, version=version, state="aborted")).rowcount
            if lost and handles[0].mode == "upsert":
                # If only the lost rows were repaired, a repaired row could replace a greater one. So repair all rows.
                rest, whole = [handle.transaction for handle in whole], []
                step.execute(self._statements.insert_markers(rest, version=version, state="aborted"))
        names = [handle.transaction for handle in whole]
        marked = step.execute(self._statements.insert_markers(names, version=version, state="committed"))
        fresh = {name for (name,) in marked}
        if todo := [handle for handle in whole if handle.transaction in fresh]:
            self.insert(step, todo)

    def insert(self, step: Connection, handles: Sequence[PostgresHandle]) -> None:
        """Copy the stages' rows into the table, which may have been altered since the decision."""
        table = self._locked_table(step)
        self._require_columns(step, table, handles)
        self._insert(step, table, handles)

    def _locked_table(self, step: Connection) -> Table:
        """Read the table. Until the step ends, nobody can alter it."""
        [(name,)] = step.execute("SELECT pg_catalog.to_regclass(%s)::text", [self._settings.table]).fetchall()
        if name is not None:
            step.execute(lock_table(name))
        try:
            return self.table(step)
        except ConfigurationError as error:
            raise TableGoneError(
                f"{self._settings.table} no longer exists, or another table has its name: rename the original table "
                "back to this name"
            ) from error

    def _require_columns(self, step: Connection, table: Table, handles: Sequence[PostgresHandle]) -> None:
        """Check that each value is written to its own column, and that the column's type leaves the value unchanged.

        Raises:
            ColumnRenamedError, ColumnDroppedError, ColumnAlteredError: the table's columns have changed too much.
        """
        txns = [handle.transaction for handle in handles]
        numbered = {column.number: column.name for column in table.columns}
        for name, number in dict.fromkeys(
            pair for one in handles for pair in zip(one.columns, one.numbers, strict=True)
        ):
            if number not in numbered:
                stages = ", ".join(self._statements.stage(txn).as_string() for txn in txns)
                raise ColumnDroppedError(
                    f"column {name!r} of {table.title} was dropped after the rows were staged in {stages}"
                )
            if numbered[number] != name:
                raise ColumnRenamedError(
                    f"column {name!r} of {table.title} was renamed to {numbered[number]!r} after the rows were staged"
                )
        known = {column.name: column for column in table.columns}
        names = {*handles[0].columns, *handles[0].filled} & known.keys()
        find = self._statements.find_altered_stages(txns, table, sorted(names))
        altered = [
            (stage, staged)
            for stage, oid in step.execute(find).fetchall()
            for staged in read_columns(step, oid)
            if staged.name in names and not keeps_values(staged.type, known[staged.name].type)
        ]
        if altered:
            staged = altered[0][1]
            stages = ", ".join(stage for stage, other in altered if other.name == staged.name)
            raise ColumnAlteredError(
                f"column {staged.name!r} of {table.title} was altered from {staged.type.sql} to "
                f"{known[staged.name].type.sql} after the rows were staged in {stages}, so the conversion might change the "
                "staged values"
            )

    def _insert(self, step: Connection, table: Table, handles: Sequence[PostgresHandle]) -> None:
        publishing = handles[0].publishing(table)
        names = [handle.transaction for handle in handles]
        index = _require_key_index(publishing) if publishing.mode == "upsert" else None
        published = step.execute(self._statements.publish(names, publishing, handles[0].filled)).rowcount
        expected = sum(handle.rows for handle in handles)
        if published == expected:
            return
        if index is None:
            raise RowsLeftOutError(
                f"{table.title} accepted only {published} of {expected} rows: a trigger or a rule dropped the other rows"
            )
        if table.triggers:  # nothing else can leave out a row of an upsert
            self._require_keys(step, publishing, index, names, published)

    def _require_keys(
        self, step: Connection, publishing: Publishing, index: Index, names: Sequence[str], published: int
    ) -> None:
        """Check that no trigger has left out a row of an upsert.

        A trigger on UPDATE may keep an existing row as it is, as ``suppress_redundant_updates_trigger`` does.

        Raises:
            RowsLeftOutError: a trigger has left out a row.
        """
        [(keys,)] = step.execute(self._statements.count_keys(names, publishing)).fetchall()
        if published == keys:
            return
        title = publishing.table.title
        if publishing.changed and not any("UPDATE" in trigger.events for trigger in publishing.table.triggers):
            raise RowsLeftOutError(
                f"{title} accepted only {published} of {keys} rows: a trigger dropped the other rows"
            )
        left_out = step.execute(self._statements.find_left_out_key(names, publishing, index)).fetchone()
        if left_out is not None:
            raise RowsLeftOutError(
                f"{title} has no row with the key {_shown(publishing.key, left_out)}, although the batch contains one: a trigger "
                "dropped the row or changed its key"
            )

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
            raise BadRecordError(
                f"sink {self._settings.name!r}: {count} rows of this batch have the key {_shown(publishing.key, key)}, and the "
                "sink cannot tell which row to keep. Nothing was decided. Pass order_by=…, or reduce the batch to one row per key"
            )


def _shown(names: Sequence[str], key: Sequence[Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, key, strict=True))


def _require_key_index(publishing: Publishing) -> Index:
    """Return the key's index. Check that ``ON CONFLICT`` finds exactly the rows with the batch's keys. The table must be locked.

    ``CREATE INDEX CONCURRENTLY`` does not wait for the lock, but it makes a new index valid only when the lock's transaction
    has ended.

    Raises:
        KeyIndexGoneError: the table has no unique index on the key.
        RivalIndexError: PostgreSQL would also use an index that compares keys in another way.
    """
    key, title, index = ", ".join(publishing.key), publishing.table.title, publishing.key_index
    if index is None:
        raise KeyIndexGoneError(f"the batch upserts by ({key}), but {title} has no unique index on this key")
    if rivals := publishing.rival_indexes:
        raise RivalIndexError(
            f"the batch upserts by ({key}), but {title} also has the unique index {rivals[0].name} on this key. This index is "
            "deferrable, or it may consider keys equal that differ in the table. So an upsert could update a row with another key"
        )
    return index
