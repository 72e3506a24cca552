"""Describe a sink's table.

Tasks and the driver read the description from the catalog and compare its text, so all collections are in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: How the table computes a column's value. ``ALWAYS`` and ``BY DEFAULT`` mean an identity column, and ``EXPRESSION`` means a
#: generated column.
Generated = Literal["", "ALWAYS", "BY DEFAULT", "EXPRESSION"]
#: Why the server rejects every update of a published table.
Obstacle = Literal["no identity", "column list", "row filter", "generated columns"]


@dataclass(frozen=True)
class ColumnType:
    """A column's type, with domains resolved.

    Attributes:
        sql: the type's name in SQL, such as ``numeric(10,2)``.
        kind: the underlying type's name, such as ``numeric``. For an array, the elements' type; ``enum`` for every
            enumeration; empty if the sink does not know the type.
        is_array: whether the type is an array.
        length: n in ``varchar(n)`` and ``char(n)``, in characters; None means no limit.
        precision: p in ``numeric(p,s)``; None means no limit.
        scale: s in ``numeric(p,s)``.
        labels: an enumeration's labels.
        is_required: whether a domain forbids nulls.
    """

    sql: str
    kind: str
    is_array: bool = False
    length: int | None = None
    precision: int | None = None
    scale: int = 0
    labels: tuple[str, ...] = ()
    is_required: bool = False


@dataclass(frozen=True)
class Column:
    """A column in the table.

    Attributes:
        number: the column number in the catalog, which constraints and indexes use.
        is_nullable: whether the column may be null.
        default: the expression for the column's default; None if the column has no default.
        generated: how the table computes the column's value; empty if the table does not compute it.
        sources: the names of the columns in a generated column's expression.
        forbidden_sequence: the name of a sequence that the default uses and that the role may not use; empty if there is none.
    """

    number: int
    name: str
    type: ColumnType
    is_nullable: bool = True
    default: str | None = None
    generated: Generated = ""
    sources: tuple[str, ...] = ()
    forbidden_sequence: str = ""

    @property
    def is_numbered(self) -> bool:
        """Whether the column's default is the next number of a sequence, as in a ``serial`` column."""
        return (self.default or "").startswith("nextval(")

    @property
    def is_identity(self) -> bool:
        """Whether the column is an identity column, which a sequence fills."""
        return self.generated in {"ALWAYS", "BY DEFAULT"}

    @property
    def may_be_omitted(self) -> bool:
        """Whether rows can be inserted without this column."""
        return self.is_nullable or self.default is not None or bool(self.generated)


@dataclass(frozen=True)
class Index:
    """An index on the table, or on one of its partitions.

    Attributes:
        name: the index's name, quoted if needed, and qualified unless its schema is in the search path.
        method: the access method, such as ``btree``.
        columns: the key columns' names, in order, without expressions.
        is_unique: whether the index forbids two rows with equal keys.
        is_immediate: whether the server checks uniqueness immediately; False for a deferrable constraint.
        is_valid: whether the index covers every row. ``CREATE INDEX CONCURRENTLY`` may have left an incomplete index.
        is_partial: whether the index has a predicate.
        has_expressions: whether a key is an expression.
        compares_otherwise: whether values that differ in the column may be equal in the index. This is possible if the
            operator class is not the type's default, or if the collation differs from the column's and one of the two
            collations is nondeterministic.
        is_own: whether the index is on the table itself, not just on a partition.
        equals: for each key of a B-tree index, the operator in SQL that compares two keys for equality.
        stored: the names of all columns that the index stores: the key columns, and the ``INCLUDE`` columns of a covering index.
        sources: the names of the columns on which the index depends, including those in its expressions and predicate.
            For a constraint's index, this omits the key columns.
        expression_columns: the names of the columns in the index's expressions.
        predicate: the names of the columns in the index's predicate.
        has_fallible_predicate: whether the predicate does more than test columns for truth and for NULL.
        has_extremes: whether the index stores summary values, such as the smallest and the largest, of many rows (BRIN).
        definition: the text after ``USING`` in the ``CREATE INDEX`` statement, without clauses that only a unique index may
            have; empty if it was not read.
    """

    name: str
    method: str
    columns: tuple[str, ...]
    is_unique: bool
    is_immediate: bool = True
    is_valid: bool = True
    is_partial: bool = False
    has_expressions: bool = False
    compares_otherwise: bool = False
    is_own: bool = True
    equals: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    expression_columns: tuple[str, ...] = ()
    predicate: tuple[str, ...] = ()
    has_fallible_predicate: bool = False
    has_extremes: bool = False
    definition: str = ""


@dataclass(frozen=True)
class Constraint:
    """A constraint on the table, or on one of its partitions.

    Attributes:
        kind: ``pg_constraint.contype``: ``c`` for CHECK, ``f`` for a foreign key, ``x`` for an exclusion, ``t`` for a constraint
            trigger, ``n`` for a NOT NULL constraint that is not valid.
        name: the constraint's name, quoted if needed.
        table: the name of the constraint's table, qualified unless its schema is in the search path.
        table_oid: the object id of the constraint's table.
        columns: the names of the constraint's columns.
        definition: the SQL definition; empty if it was not read (see :func:`twopc.sinks.postgres.table.read_table`).
        is_enforced: whether the server enforces the constraint.
        is_valid: whether all rows in the table satisfy the constraint. Old rows may violate a NOT VALID constraint.
        is_inherited: whether a partition inherits the constraint from its parent.
    """

    kind: str
    name: str
    table: str
    table_oid: int
    columns: tuple[str, ...]
    definition: str
    is_enforced: bool = True
    is_valid: bool = True
    is_inherited: bool = False


@dataclass(frozen=True)
class Route:
    """The expressions that a partitioned table uses to choose a row's partition.

    Attributes:
        table: the name of the partitioned table: the sink's table, or one of its partitions.
        expressions: the expressions in SQL, separated by commas; empty if they were not read.
        bounds: a condition in SQL. The expressions are evaluated only for rows that fulfill it. Empty means every row.
        columns: the names of the columns that decide whether the expressions are evaluated, and with what result.
    """

    table: str
    expressions: str
    bounds: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Trigger:
    """A user's trigger that fires for this session.

    Attributes:
        name: the trigger's name, quoted if needed.
        table: the name of the trigger's table, qualified unless its schema is in the search path.
        events: the events that fire the trigger: INSERT, UPDATE, DELETE or TRUNCATE.
    """

    name: str
    table: str
    events: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The table that a sink writes to.

    Attributes:
        oid: the object id, which changes when the table is recreated.
        schema: the schema's name.
        name: the table name, without the schema.
        kind: ``pg_class.relkind``: ``r`` for a regular table, ``p`` for a partitioned table.
        persistence: ``pg_class.relpersistence``: ``p`` for a permanent table, ``u`` for an unlogged table.
        columns: all columns, in order.
        indexes: the indexes on the table and its partitions.
        constraints: the constraints on the table and its partitions, except primary keys and unique constraints, which are
            indexes.
        triggers: the triggers on the table and its partitions.
        rules: the names of the rewrite rules that apply in this session.
        update_rules: the names of all rewrite rules for UPDATE, including those that are disabled.
        is_partition: whether the table is a partition of another table.
        heirs: the tables that inherit from the table (``INHERITS``) and are not its partitions.
        unrouted: the partitioned tables in the tree that reject some rows, because they have no default partition.
        lacking_remainders: the hash-partitioned tables in the tree that reject some rows, because some remainders have no
            partition. These tables cannot have a default partition.
        stricter: the partitions that forbid nulls in a column that may be null in the table.
        computing_otherwise: the partitions with a generated column whose expression differs from the table's.
        routes: the expressions in partition keys.
        foreign: the partitions on another server.
        unlogged: the partitions that a server crash empties.
        rejecting_updates: the table or those of its partitions that reject every update, because a publication includes
            updates, and the replica identity is missing or does not fit the publication. Each name comes with its
            :data:`Obstacle`.
        has_row_security: whether row-level security applies to the current role.
        role: the current role.
        missing_rights: those of the privileges INSERT, SELECT and UPDATE that the role lacks on the table.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    rules: tuple[str, ...] = ()
    update_rules: tuple[str, ...] = ()
    is_partition: bool = False
    heirs: tuple[str, ...] = ()
    unrouted: tuple[str, ...] = ()
    lacking_remainders: tuple[str, ...] = ()
    stricter: tuple[str, ...] = ()
    computing_otherwise: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    foreign: tuple[str, ...] = ()
    unlogged: tuple[str, ...] = ()
    rejecting_updates: tuple[tuple[str, Obstacle], ...] = ()
    has_row_security: bool = False
    role: str = ""
    missing_rights: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The table name in error messages."""
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column:
        """Return the column with this name."""
        return next(column for column in self.columns if column.name == name)
