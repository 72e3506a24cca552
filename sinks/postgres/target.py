"""Describe a sink's table as the catalog shows it, in frozen and picklable form: the driver reads it, and tasks use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: Who computes a column's value: ``ALWAYS`` and ``BY DEFAULT`` are identities, ``EXPRESSION`` is a generated column.
Generated = Literal["", "ALWAYS", "BY DEFAULT", "EXPRESSION"]


@dataclass(frozen=True)
class ColumnType:
    """The type of a column, with its domains resolved.

    Attributes:
        sql: the type as SQL names it, such as ``numeric(10,2)``.
        kind: the name of the underlying type, such as ``numeric``; for an array, that of its elements; ``enum`` for every
            enumeration. Empty if the sink does not know the type.
        is_array: whether it is an array.
        length: of ``varchar(n)`` and ``char(n)``, in characters; None: no limit.
        precision: of ``numeric(p,s)``; None: no limit.
        scale: of ``numeric(p,s)``.
        labels: of an enumeration.
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
    """A column of the table.

    Attributes:
        number: its number in the catalog, which constraints and indexes use.
        is_nullable: whether it may be null.
        default: the expression of its default; None if it has none.
        generated: who computes its value.
        sources: the names of the columns that its expression uses.
    """

    number: int
    name: str
    type: ColumnType
    is_nullable: bool = True
    default: str | None = None
    generated: Generated = ""
    sources: tuple[str, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether a sequence of the table itself fills the column."""
        return self.generated in {"ALWAYS", "BY DEFAULT"}

    @property
    def may_be_omitted(self) -> bool:
        """Whether a row without the column can be inserted."""
        return self.is_nullable or self.default is not None or bool(self.generated)


@dataclass(frozen=True)
class Index:
    """An index of the table, or of one of its partitions.

    Attributes:
        name: its name with the schema, quoted if needed.
        method: the access method, such as ``btree``.
        columns: the names of its key columns, in order; an expression has no name and is left out.
        is_unique: whether it forbids two rows with equal keys.
        is_primary: whether it belongs to the primary key.
        is_immediate: whether it is checked at once; a deferrable constraint is not.
        is_valid: whether it covers every row. ``CREATE INDEX CONCURRENTLY`` may have left an index that does not.
        is_partial: whether it has a predicate.
        has_expressions: whether a key is an expression.
        compares_otherwise: whether values that differ in the column may be equal in the index. Such an index has an operator
            class that is not the type's own, or its collation is not the column's and one of the two is not deterministic.
        is_own: whether it belongs to the table itself, and not only to a partition.
        definition: the text after ``USING`` in the statement that creates it, without clauses that only a unique index may
            have; empty if it was not read.
    """

    name: str
    method: str
    columns: tuple[str, ...]
    is_unique: bool
    is_primary: bool = False
    is_immediate: bool = True
    is_valid: bool = True
    is_partial: bool = False
    has_expressions: bool = False
    compares_otherwise: bool = False
    is_own: bool = True
    definition: str = ""


@dataclass(frozen=True)
class Constraint:
    """A constraint of the table, or of one of its partitions.

    Attributes:
        kind: as in ``pg_constraint.contype``: ``c`` for CHECK, ``f`` for a foreign key, ``x`` for an exclusion, ``t`` for a
            constraint trigger.
        name: its name, quoted if needed.
        table: the table that has it, with its schema if it is not in the search path.
        table_oid: that table's object id.
        columns: the names of its columns.
        definition: as SQL states it; empty if it was not read, see :func:`twopc.sinks.postgres.table.read_table`.
        is_enforced: whether the server applies it.
        is_inherited: whether a partition has it from its parent.
    """

    kind: str
    name: str
    table: str
    table_oid: int
    columns: tuple[str, ...]
    definition: str
    is_enforced: bool = True
    is_inherited: bool = False


@dataclass(frozen=True)
class Trigger:
    """A user's trigger that fires for this session.

    Attributes:
        name: its name, quoted if needed.
        table: the table that has it, with its schema.
        events: those of INSERT, UPDATE, DELETE and TRUNCATE at which it fires.
    """

    name: str
    table: str
    events: frozenset[str]


@dataclass(frozen=True)
class Table:
    """The table that a sink writes to.

    Attributes:
        oid: its object id, which changes when the table is recreated.
        schema: the name of its schema.
        name: its name, without the schema.
        kind: as in ``pg_class.relkind``: ``r`` for a regular table, ``p`` for a partitioned one.
        persistence: as in ``pg_class.relpersistence``: ``p``, or ``u`` for an unlogged table.
        columns: all of them, in order.
        indexes: those of the table and of its partitions.
        constraints: those of the table and of its partitions, except primary keys and unique ones, which are indexes.
        triggers: those of the table and of its partitions.
        rules: the names of its rewrite rules.
        is_partition: whether it is a partition of another table.
        unrouted: partitioned tables in it that have no default partition, so that they reject some rows.
        stricter: its partitions that forbid nulls in a column that the table allows to be null.
        foreign: its partitions that are on another server.
        rejects_updates: whether its updates are published although it has no replica identity, so that each update fails.
        has_row_security: whether row-level security applies to the current role.
        role: the current role.
        missing_rights: those of INSERT, SELECT and UPDATE on the table that the role lacks.
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
    is_partition: bool = False
    unrouted: tuple[str, ...] = ()
    stricter: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    rejects_updates: bool = False
    has_row_security: bool = False
    role: str = ""
    missing_rights: frozenset[str] = field(default_factory=frozenset)

    @property
    def title(self) -> str:
        """The table's name in messages."""
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column:
        """Return the column with this name."""
        return next(column for column in self.columns if column.name == name)
