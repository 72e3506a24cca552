"""Build the SQL for the sink's own objects, for staging slices, and for publishing batches. Every function is pure.

The objects are in a separate schema, which several sinks may share:

* ``control`` contains each sink's control record.
* ``slice`` lists each staged slice, with its sink and its number of rows.
* ``marker`` says whether each finished slice was published or rolled back, and contains the decision's version.
* ``stage_<uuid>`` contains the rows of one slice. This table is logged, because a crash empties an unlogged table.
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
    from twopc.sinks.postgres.target import Index, Route, Table

_OBJECTS: Final = (
    "CREATE TABLE IF NOT EXISTS {schema}.control (sink text PRIMARY KEY, record bytea NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {schema}.slice (txn text PRIMARY KEY, sink text NOT NULL, rows bigint NOT NULL)",
    "CREATE INDEX IF NOT EXISTS slice_of_sink ON {schema}.slice (sink)",
    """
CREATE TABLE IF NOT EXISTS {schema}.marker (
  txn text PRIMARY KEY, sink text NOT NULL, version bigint NOT NULL, state text NOT NULL
    CHECK (state IN ('committed', 'aborted'))
)""",
    "CREATE INDEX IF NOT EXISTS marker_of_sink ON {schema}.marker (sink, version)",
)
_STAGE: Final = "stage_"
#: The length of the UUID at the end of a transaction name. The full name may be too long for PostgreSQL.
_DIGITS: Final = 32


@dataclass(frozen=True)
class Statements:
    """Builds one sink's SQL.

    Attributes:
        schema: the name of the schema for the sink's own objects.
        sink: the sink name.
    """

    schema: str
    sink: str

    # -- the sink's own objects -----------------------------------------------------------------------------------------

    def find_objects(self) -> sql.Composed:
        """Check whether the schema and the tables in it exist."""
        return self._format(
            "SELECT pg_catalog.to_regclass(pg_catalog.format('%I.marker_of_sink', {schema_name}::text)) IS NOT NULL"
        )

    def create(self) -> Iterator[sql.Composed]:
        """Create the missing objects, except stages. To create the schema, the role needs CREATE on the database."""
        # Without this lock, one of two drivers that create the objects at the same time would get an error.
        yield self._format(
            "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('twopc '::text || {schema_name}::text))"
        )
        yield self._format(
            "DO $do$ BEGIN IF pg_catalog.to_regnamespace(pg_catalog.quote_ident({schema_name}::text)) IS NULL "
            "THEN CREATE SCHEMA {schema}; END IF; END $do$"
        )
        yield from (self._format(statement) for statement in _OBJECTS)

    def load_control(self, *, locked: bool = False) -> sql.Composed:
        """Read the control record. With ``locked``, wait for any running step to finish, and keep other steps from starting."""
        statement = self._format("SELECT record FROM {schema}.control WHERE sink = {sink}")
        return statement + sql.SQL(" FOR UPDATE") if locked else statement

    def swap_control(self, old: bytes | None, new: bytes) -> sql.Composed:
        """Write the record if the stored record is still ``old``. Otherwise, the statement changes no row."""
        if old is None:
            return self._format(
                "INSERT INTO {schema}.control (sink, record) VALUES ({sink}, {new}) ON CONFLICT (sink) DO NOTHING",
                new=new,
            )
        return self._format(
            "UPDATE {schema}.control SET record = {new} WHERE sink = {sink} AND record = {old}", old=old, new=new
        )

    # -- a slice --------------------------------------------------------------------------------------------------------

    def create_stage(self, txn: str, publishing: Publishing) -> Iterator[sql.Composed]:
        """Create a slice's stage, which fills missing columns with defaults, except those that the publish fills.

        With ``vote="staged"``, the stage must reject every row that the table itself would reject because of the row's own
        values. With ``vote="prepared"``, the table itself checks the rows before the decision, after its triggers may have
        changed them.
        """
        stage = self.stage(txn)
        is_last_check = publishing.vote == "staged"
        checks = sql.SQL("INCLUDING CONSTRAINTS INCLUDING GENERATED" if is_last_check else "")
        yield sql.SQL(
            "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING STORAGE {}) WITH (autovacuum_enabled = off)"
        ).format(stage, place(publishing.table), checks)
        for column in publishing.null_when_staged:
            yield sql.SQL("ALTER TABLE {} ALTER {} DROP NOT NULL").format(stage, sql.Identifier(column.name))
        for column in publishing.left_to_the_table:  # otherwise, the stage would draw sequence numbers that no row uses
            yield sql.SQL("ALTER TABLE {} ALTER {} DROP DEFAULT").format(stage, sql.Identifier(column.name))
        if is_last_check:  # these definitions come from the server itself
            for definition in staged_indexes(publishing.table):
                yield sql.SQL("CREATE INDEX ON {} USING ").format(stage) + sql.SQL(definition)
            if routes := publishing.table.routes:
                yield sql.SQL("ALTER TABLE {} ").format(stage) + sql.SQL(", ").join(_evaluations(routes))

    def copy(self, txn: str, columns: Sequence[str]) -> sql.Composed:
        """Copy rows into the stage. The client sends the text from :meth:`RowFormat.copy_text`."""
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT text, ENCODING 'UTF8')").format(
            self.stage(txn), _names(columns)
        )

    def insert_slice(self, txn: str, *, rows: int) -> sql.Composed:
        """Record a slice."""
        return self._format(
            "INSERT INTO {schema}.slice (txn, sink, rows) VALUES ({txn}, {sink}, {rows})", txn=txn, rows=rows
        )

    def find_slices(self, txns: Sequence[str], *, unmarked: bool = False) -> sql.Composed:
        """Find the slices that have stages, with their row counts.

        ``unmarked`` excludes published and rolled-back slices.
        """
        statement = self._format(
            "SELECT s.txn, s.rows FROM {schema}.slice s WHERE txn = ANY({txns}) AND sink = {sink} "
            "AND pg_catalog.to_regclass({stage}) IS NOT NULL",
            txns=list(txns),
        )
        if not unmarked:
            return statement
        return statement + self._format(" AND NOT EXISTS (SELECT FROM {schema}.marker m WHERE m.txn = s.txn)")

    def count(self, txns: Sequence[str]) -> sql.Composed:
        """Count the rows in each stage."""
        count = sql.SQL("SELECT {}, pg_catalog.count(*) FROM {}")
        parts = (count.format(sql.Literal(txn), self.stage(txn)) for txn in txns)
        return sql.SQL(" UNION ALL ").join(parts)

    def find_slices_without_marker(self) -> sql.Composed:
        """Find the slices that are neither published nor rolled back."""
        return self._format(
            "SELECT s.txn FROM {schema}.slice s WHERE sink = {sink} "
            "AND NOT EXISTS (SELECT FROM {schema}.marker m WHERE m.txn = s.txn) ORDER BY s.txn"
        )

    def find_slices_with_marker(self, *, limit: int) -> sql.Composed:
        """Find published or rolled-back slices.

        The stages of these slices are no longer needed, and no transaction reads them. The second column is null if this role may
        drop the stage. Otherwise, it is the stage's owner. The stages that this role may drop come first.
        """
        return self._format(
            "SELECT s.txn, pg_catalog.pg_get_userbyid(t.relowner) FROM {schema}.slice s JOIN {schema}.marker m USING (txn) "
            "LEFT JOIN pg_catalog.pg_class t ON t.oid = pg_catalog.to_regclass({stage})::oid "
            "AND NOT pg_catalog.pg_has_role(t.relowner, 'USAGE') AND NOT EXISTS ("
            "SELECT FROM pg_catalog.pg_namespace n WHERE n.oid = t.relnamespace AND pg_catalog.pg_has_role(n.nspowner, 'USAGE')"
            ") WHERE s.sink = {sink} AND NOT EXISTS ("
            "SELECT FROM pg_catalog.pg_locks l WHERE l.relation = pg_catalog.to_regclass({stage})::oid "
            "AND l.pid <> pg_catalog.pg_backend_pid()"
            ") ORDER BY t.oid IS NOT NULL LIMIT {limit}",
            limit=limit,
        )

    def drop_stages(self, txns: Sequence[str], *, lock_timeout_ms: int) -> Iterator[sql.Composed]:
        """Drop stages and forget their slices, in one transaction. Fail if another session has locked one of the stages."""
        yield sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{lock_timeout_ms}ms"))
        if txns:
            yield sql.SQL("DROP TABLE IF EXISTS {}").format(sql.SQL(", ").join(map(self.stage, txns)))
            yield self._format("DELETE FROM {schema}.slice WHERE txn = ANY({txns}) AND sink = {sink}", txns=list(txns))

    # -- the publish ----------------------------------------------------------------------------------------------------

    def insert_markers(self, txns: Sequence[str], *, version: int, state: str) -> sql.Composed:
        """Mark slices. The statement returns the slices that had no marker. Only these slices may be published."""
        return self._format(
            "INSERT INTO {schema}.marker (txn, sink, version, state) "
            "SELECT txn, {sink}, {version}, {state} FROM pg_catalog.unnest({txns}::text[]) txn "
            "ON CONFLICT (txn) DO NOTHING RETURNING txn",
            txns=list(txns),
            version=version,
            state=state,
        )

    def find_marker(self, txn: str) -> sql.Composed:
        """Find a slice's marker."""
        return self._format("SELECT state FROM {schema}.marker WHERE txn = {txn} AND sink = {sink}", txn=txn)

    def forget_markers(self, *, below: int) -> sql.Composed:
        """Remove the markers of decisions whose version is less than ``below``, unless the markers' slices still exist."""
        return self._format(
            "DELETE FROM {schema}.marker m WHERE sink = {sink} AND version < {below} "
            "AND NOT EXISTS (SELECT FROM {schema}.slice s WHERE s.txn = m.txn)",
            below=below,
        )

    def find_repeated_key(self, txns: Sequence[str], publishing: Publishing) -> sql.Composed:
        """Find a key that several staged rows share.

        Without ``order_by``, the sink cannot tell which of these rows to keep.
        """
        key = _names(publishing.key)
        return sql.SQL(
            "SELECT {}, pg_catalog.count(*) FROM ({}) staged GROUP BY {} HAVING pg_catalog.count(*) > 1 LIMIT 1"
        ).format(key, self._staged(txns, publishing.key), key)

    def count_keys(self, txns: Sequence[str], publishing: Publishing) -> sql.Composed:
        """Count the different keys of the staged rows."""
        return sql.SQL("SELECT pg_catalog.count(*) FROM (SELECT DISTINCT {} FROM ({}) staged) keys").format(
            _names(publishing.key), self._staged(txns, publishing.key)
        )

    def find_left_out_key(self, txns: Sequence[str], publishing: Publishing, index: Index) -> sql.Composed:
        """Find the key of a staged row that the table does not contain.

        ``index`` is the unique index on the key. A table that inherits from this one is not covered by the index, so a row in it
        does not count.
        """
        table = publishing.table
        is_same = sql.SQL(" AND ").join(
            sql.SQL("t.{0} {1} staged.{0}").format(sql.Identifier(name), sql.SQL(equals))
            for name, equals in zip(index.columns, index.equals, strict=True)
        )
        return sql.SQL("SELECT {} FROM ({}) staged WHERE NOT EXISTS (SELECT FROM {} {} t WHERE {}) LIMIT 1").format(
            _names(publishing.key),
            self._staged(txns, publishing.key),
            sql.SQL("" if table.kind == "p" else "ONLY"),
            place(table),
            is_same,
        )

    def find_altered_stages(self, txns: Sequence[str], table: Table, columns: Sequence[str]) -> sql.Composed:
        """Find the stages in which one of these columns has a different type than in the table. Return their names and oids."""
        return self._format(
            "SELECT DISTINCT {stage}, s.attrelid::int8 FROM pg_catalog.unnest({txns}::text[]) txn "
            "JOIN pg_catalog.pg_attribute s ON s.attrelid = pg_catalog.to_regclass({stage})::oid AND s.attname = ANY({columns}) "
            "JOIN pg_catalog.pg_attribute t ON t.attrelid = {table}::oid AND t.attname = s.attname "
            "WHERE (s.atttypid, s.atttypmod) <> (t.atttypid, t.atttypmod) ORDER BY 1",
            txns=list(txns),
            table=table.oid,
            columns=list(columns),
        )

    def publish(self, txns: Sequence[str], publishing: Publishing, filled: Sequence[str] | None = None) -> sql.Composed:
        """Copy the stages' rows into the table.

        Args:
            txns: the transactions whose stages to copy.
            publishing: how to publish the rows.
            filled: the columns that the stages have filled with defaults. Pass them if the table's defaults may have changed
                since the rows were staged.
        """
        # If the table has lost one of the batch's columns, the server reports an error, and the user must rename the
        # column back. A lost column with a default does no harm.
        names = (*publishing.written, *(name for name in publishing.filled if filled is None or name in filled))
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
        if not publishing.changed:
            return insert + staged + sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(key)
        values = sql.SQL(", ").join(
            sql.SQL("{} = EXCLUDED.{}").format(sql.Identifier(name), sql.Identifier(name))
            for name in publishing.changed
        )
        return insert + staged + sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(key, values)

    def stage(self, txn: str) -> sql.Identifier:
        """Return the name of a slice's stage table."""
        return sql.Identifier(self.schema, _STAGE + txn[-_DIGITS:])

    def _staged(self, txns: Sequence[str], names: Sequence[str]) -> sql.Composed:
        parts = (sql.SQL("SELECT {} FROM {}").format(_names(names), self.stage(txn)) for txn in txns)
        return sql.SQL(" UNION ALL ").join(parts)

    def _format(self, statement: LiteralString, **values: Any) -> sql.Composed:
        named = {name: sql.Literal(value) for name, value in values.items()}
        literals = {"sink": self.sink, "schema_name": self.schema, "prefix": _STAGE, "digits": _DIGITS}
        named |= {name: sql.Literal(value) for name, value in literals.items()}
        stage = sql.SQL(
            "pg_catalog.format('%I.%I', {schema_name}::text, {prefix}::text || pg_catalog.right(txn, {digits}))"
        ).format(**named)
        return sql.SQL(statement).format(schema=sql.Identifier(self.schema), stage=stage, **named)


def read_facts() -> sql.SQL:
    """Read the server's role (primary or standby), its version, and its limit on prepared transactions."""
    return sql.SQL(
        "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_version_num')::int, "
        "pg_catalog.current_setting('max_prepared_transactions')::int"
    )


def find_asynchronous_standby() -> sql.SQL:
    """Return whether a standby replicates the server asynchronously.

    A role without privileges sees a standby only if the standby has a replication slot. ``pg_stat_replication`` also contains the
    readers of logical slots, and base backups.
    """
    return sql.SQL(
        "SELECT pg_catalog.current_setting('synchronous_standby_names') = '' AND EXISTS ("
        "SELECT FROM pg_catalog.pg_stat_replication r "
        "LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid "
        "WHERE CASE WHEN s.active_pid IS NULL THEN r.state IN ('streaming', 'catchup') "
        "ELSE s.slot_type = 'physical' AND NOT s.temporary END)"
    )


def find_publications(schema: str) -> sql.Composed:
    """Find the publications that include every table in the schema, even tables that do not exist yet."""
    return sql.SQL(
        "SELECT p.pubname FROM pg_catalog.pg_publication p WHERE p.puballtables OR EXISTS ("
        "SELECT FROM pg_catalog.pg_publication_namespace s "
        "JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid AND n.nspname = {}) ORDER BY 1"
    ).format(schema)


def lock_table(name: str) -> sql.Composed:
    """Lock a table as an INSERT does, so that its definition cannot change. The name is the server's own output."""
    return sql.SQL("LOCK TABLE ONLY ") + sql.SQL(name) + sql.SQL(" IN ROW EXCLUSIVE MODE")


def place(table: Table) -> sql.Identifier:
    """Return the table name, qualified with the schema."""
    return sql.Identifier(table.schema, table.name)


def _evaluations(routes: Sequence[Route]) -> Iterator[sql.SQL]:
    """Evaluate partition keys as the table does. Each check is always true, but it fails if an expression fails.

    A partition's key expression may fail on a row that does not go into that partition. So a CASE expression tests the bounds
    first.
    """
    conditions: dict[str, dict[str, None]] = {}
    for route in routes:
        conditions.setdefault(route.expressions, {})[f"({route.bounds or 'true'})"] = None
    for expressions, bounds in conditions.items():
        check = f"CASE WHEN {' OR '.join(bounds)} THEN pg_catalog.num_nulls({expressions}) >= 0 ELSE true END"
        yield sql.SQL(f"ADD CHECK ({check})")


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
