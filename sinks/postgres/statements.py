"""The SQL of the sink: its own objects, a slice's stage, and the publish of a batch. Every function is pure.

The objects are in a schema of their own, which several sinks may share:

* ``control``: for each sink the record that its drivers compare and set, its epoch, and its newest decision;
* ``slice``: for each staged slice its sink, epoch, version, rows and checksum;
* ``marker``: for each slice that has been published or given up, which of the two;
* ``stage_<transaction>``: the rows of one slice. It is logged, because a crash empties an unlogged table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from twopc.sinks.postgres.staged_indexes import staged_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import LiteralString

    from twopc.sinks.postgres.publishing import Publishing
    from twopc.sinks.postgres.target import Table

_OBJECTS: Final = (
    """
CREATE TABLE IF NOT EXISTS {schema}.control (
  sink text PRIMARY KEY, record bytea NOT NULL, epoch bigint NOT NULL, decided bigint NOT NULL
)""",
    """
CREATE TABLE IF NOT EXISTS {schema}.slice (
  txn text PRIMARY KEY, sink text NOT NULL, epoch bigint NOT NULL, version bigint NOT NULL, rows bigint NOT NULL,
  checksum text NOT NULL
)""",
    "CREATE INDEX IF NOT EXISTS slice_of_sink ON {schema}.slice (sink, epoch)",
    """
CREATE TABLE IF NOT EXISTS {schema}.marker (
  txn text PRIMARY KEY, sink text NOT NULL, version bigint NOT NULL, state text NOT NULL
    CHECK (state IN ('committed', 'aborted'))
)""",
    "CREATE INDEX IF NOT EXISTS marker_of_sink ON {schema}.marker (sink, version)",
)
_STAGE: Final = "stage_"


@dataclass(frozen=True)
class Statements:
    """The SQL of one sink.

    Attributes:
        schema: the name of the schema for the sink's own objects.
        sink: the sink's name.
    """

    schema: str
    sink: str

    # -- the sink's own objects -----------------------------------------------------------------------------------------

    def create_schema(self) -> sql.Composed:
        """Create the schema. It needs a right on the database that the other statements do not need."""
        return sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema))

    def create_objects(self) -> Iterator[sql.Composed]:
        """Create what does not exist yet, except stages. Two drivers that do so at once may get an error, and must retry."""
        return (self._format(statement) for statement in _OBJECTS)

    def load_control(self, *, locked: bool = False) -> sql.Composed:
        """Read record, epoch and newest decision; ``locked``: wait for a publish that still runs, and let none begin."""
        statement = self._format("SELECT record, epoch, decided FROM {schema}.control WHERE sink = {sink}")
        return statement + sql.SQL(" FOR UPDATE") if locked else statement

    def swap_control(self, old: bytes | None, new: bytes, *, epoch: int, decided: int) -> sql.Composed:
        """Write the record if the stored one is still ``old``; returns a row if it was."""
        if old is None:
            return self._format(
                "INSERT INTO {schema}.control (sink, record, epoch, decided) VALUES ({sink}, {new}, {epoch}, {decided}) "
                "ON CONFLICT (sink) DO NOTHING RETURNING epoch",
                new=new,
                epoch=epoch,
                decided=decided,
            )
        return self._format(
            "UPDATE {schema}.control SET record = {new}, epoch = {epoch}, decided = {decided} "
            "WHERE sink = {sink} AND record = {old} RETURNING epoch",
            old=old,
            new=new,
            epoch=epoch,
            decided=decided,
        )

    def record_decision(self, version: int) -> sql.Composed:
        """Note the newest decision; an older one changes nothing."""
        return self._format(
            "UPDATE {schema}.control SET decided = greatest(decided, {version}) WHERE sink = {sink}", version=version
        )

    # -- a slice --------------------------------------------------------------------------------------------------------

    def create_stage(self, txn: str, publishing: Publishing) -> Iterator[sql.Composed]:
        """Create the stage of a slice: it rejects every row that the table itself would reject because of its own values.

        It also fills in the defaults of columns that the batch lacks. An identity is left to the table: the stage would count
        on its own.
        """
        stage = self.stage(txn)
        yield sql.SQL(
            "CREATE TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING STORAGE) "
            "WITH (autovacuum_enabled = off)"
        ).format(stage, place(publishing.table))
        for column in publishing.left_to_the_table:
            yield sql.SQL("ALTER TABLE {} ALTER {} DROP NOT NULL").format(stage, sql.Identifier(column.name))
        if publishing.vote == "staged":
            for definition in staged_indexes(publishing.table):
                # As the server itself prints it.
                yield sql.SQL("CREATE INDEX ON {} USING ").format(stage) + sql.SQL(definition)

    def copy(self, txn: str, columns: Sequence[str]) -> sql.Composed:
        """Copy rows into the stage; the client sends them as :meth:`RowFormat.copy_text` makes them."""
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT text, ENCODING 'UTF8')").format(
            self.stage(txn), _names(columns)
        )

    def insert_slice(self, txn: str, *, epoch: int, version: int, rows: int, checksum: str) -> sql.Composed:
        """Enter a slice, unless a driver with a newer epoch owns the sink; returns a row if it was entered."""
        return self._format(
            "INSERT INTO {schema}.slice (txn, sink, epoch, version, rows, checksum) "
            "SELECT {txn}, {sink}, {epoch}, {version}, {rows}, {checksum} FROM {schema}.control "
            "WHERE sink = {sink} AND control.epoch <= {epoch} RETURNING txn",
            txn=txn,
            epoch=epoch,
            version=version,
            rows=rows,
            checksum=checksum,
        )

    def find_slices(self, txns: Sequence[str]) -> sql.Composed:
        """Find slices with their rows and checksums, and whether their stages exist."""
        return self._format(
            "SELECT txn, rows, checksum, to_regclass(format('%I.%I', {schema_name}::text, {prefix} || txn)) IS NOT NULL "
            "FROM {schema}.slice WHERE txn = ANY({txns}) AND sink = {sink}",
            txns=list(txns),
        )

    def find_orphans(self, *, epoch: int, decided: Sequence[str]) -> sql.Composed:
        """Find the slices of this epoch and earlier ones that no decision names."""
        return self._format(
            "SELECT txn FROM {schema}.slice WHERE sink = {sink} AND epoch <= {epoch} AND txn <> ALL({decided}) ORDER BY txn",
            epoch=epoch,
            decided=list(decided),
        )

    def drop_stages(self, txns: Sequence[str], *, lock_timeout_ms: int) -> Iterator[sql.Composed]:
        """Drop stages and forget their slices, in one transaction. Gives up if somebody holds a lock on one of them."""
        yield sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{lock_timeout_ms}ms"))
        if txns:
            yield sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(map(self.stage, txns)))
            yield self._format("DELETE FROM {schema}.slice WHERE txn = ANY({txns}) AND sink = {sink}", txns=list(txns))

    # -- the publish ----------------------------------------------------------------------------------------------------

    def insert_markers(self, txns: Sequence[str], *, version: int, state: str) -> sql.Composed:
        """Mark slices; returns those that had no marker. Only these may be published."""
        return self._format(
            "INSERT INTO {schema}.marker (txn, sink, version, state) "
            "SELECT txn, {sink}, {version}, {state} FROM unnest({txns}::text[]) txn ON CONFLICT (txn) DO NOTHING RETURNING txn",
            txns=list(txns),
            version=version,
            state=state,
        )

    def find_markers(self, txns: Sequence[str]) -> sql.Composed:
        """Find the markers of slices."""
        return self._format(
            "SELECT txn, state FROM {schema}.marker WHERE txn = ANY({txns}) AND sink = {sink}", txns=list(txns)
        )

    def forget_markers(self, *, below: int) -> sql.Composed:
        """Remove the markers of decisions below a version, except those whose slices are still there."""
        return self._format(
            "DELETE FROM {schema}.marker m WHERE sink = {sink} AND version < {below} "
            "AND NOT EXISTS (SELECT FROM {schema}.slice s WHERE s.txn = m.txn)",
            below=below,
        )

    def find_repeated_key(self, txns: Sequence[str], publishing: Publishing) -> sql.Composed:
        """Find a key that several staged rows have: without ``order_by``, nothing says which of them counts."""
        key = _names(publishing.key)
        return sql.SQL("SELECT {}, count(*) FROM ({}) staged GROUP BY {} HAVING count(*) > 1 LIMIT 1").format(
            key, self._staged(txns, publishing.key), key
        )

    def publish(self, txns: Sequence[str], publishing: Publishing) -> sql.Composed:
        """Copy the rows of stages into the table."""
        names = publishing.published
        insert = sql.SQL("INSERT INTO {} ({}) ").format(place(publishing.table), _names(names))
        staged = self._staged(txns, names)
        if publishing.mode == "append":
            return insert + staged
        key = _names(publishing.key)
        if publishing.order_by:
            newest = sql.SQL(", ").join(
                sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name)) for name in publishing.order_by
            )
            staged = sql.SQL("SELECT DISTINCT ON ({}) {} FROM ({}) staged ORDER BY {}, {}").format(
                key, _names(names), staged, key, newest
            )
        changed = [name for name in publishing.written if name not in publishing.key]
        if not changed:
            return insert + staged + sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(key)
        values = sql.SQL(", ").join(
            sql.SQL("{} = EXCLUDED.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in changed
        )
        return insert + staged + sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(key, values)

    def stage(self, txn: str) -> sql.Identifier:
        """The name of a slice's stage."""
        return sql.Identifier(self.schema, _STAGE + txn)

    def _staged(self, txns: Sequence[str], names: Sequence[str]) -> sql.Composed:
        parts = (sql.SQL("SELECT {} FROM {}").format(_names(names), self.stage(txn)) for txn in txns)
        return sql.SQL(" UNION ALL ").join(parts)

    def _format(self, statement: LiteralString, **values: Any) -> sql.Composed:
        named = {name: sql.Literal(value) for name, value in values.items()}
        literals = {"sink": self.sink, "schema_name": self.schema, "prefix": _STAGE}
        named |= {name: sql.Literal(value) for name, value in literals.items()}
        return sql.SQL(statement).format(schema=sql.Identifier(self.schema), **named)


def read_facts() -> sql.SQL:
    """Read whether the server is a standby, its identity, its version, and the standbys that a commit waits for."""
    return sql.SQL(
        "SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system()), "
        "current_setting('server_version_num')::int, current_setting('synchronous_standby_names')"
    )


def place(table: Table) -> sql.Identifier:
    """The table's name, with its schema."""
    return sql.Identifier(table.schema, table.name)


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
