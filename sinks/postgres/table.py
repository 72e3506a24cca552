"""Read a table's definition from the catalog, and describe it as a :class:`Table`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import dict_row

from twopc.errors import ConfigurationError
from twopc.sinks.postgres.catalog_queries import (
    COLUMNS,
    CONSTRAINTS,
    INDEXES,
    PARTITIONS,
    TABLE,
    TREE,
    TRIGGERS,
    TYPES,
)
from twopc.sinks.postgres.target import Column, ColumnType, Constraint, Generated, Index, Route, Table, Trigger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import LiteralString

    Row = Mapping[str, Any]

_GENERATED: Final[Mapping[str, Generated]] = {"a": "ALWAYS", "d": "BY DEFAULT", "s": "EXPRESSION", "v": "EXPRESSION"}
#: The bits of ``pg_trigger.tgtype``.
_EVENTS: Final = {4: "INSERT", 8: "DELETE", 16: "UPDATE", 32: "TRUNCATE"}
_VARIABLE_HEADER: Final = 4


def read_table(connection: psycopg.Connection[Any], name: str, *, locked: bool = True) -> Table:
    """Read a table's definition. If the caller's transaction has a snapshot, all queries use this snapshot.

    Args:
        connection: a connection to the table's database.
        name: the table name in SQL, with or without the schema, quoted if needed.
        locked: whether to read the definitions of indexes, constraints and partitions, which :func:`fingerprint` needs.
            PostgreSQL locks the table for this purpose. Before recovery, an ``ALTER TABLE`` may be waiting for the previous
            driver's vote. It then blocks every other session that requests a lock.

    Raises:
        ConfigurationError: the table does not exist.
        psycopg.Error: the server rejected the query, or did not respond.
    """
    try:
        found = connection.execute("SELECT pg_catalog.to_regclass(%s)::oid::int8", [name]).fetchone()
    except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        found = None  # PostgreSQL 15 rejects a string that is not a name
    if found is None or found[0] is None:
        raise ConfigurationError(
            f"table {name!r} does not exist, or the role has no permission to see its schema: create the table, or check the "
            "name. Write the name as in SQL: 'schema.table', with \"…\" around a name with capital letters"
        )
    oid = found[0]
    [own] = _query(connection, TABLE, oid)
    partitions = _query(connection, TREE + PARTITIONS, oid, locked=locked)
    return Table(
        oid=oid,
        schema=own["schema"],
        name=own["name"],
        kind=own["kind"],
        persistence=own["persistence"],
        columns=read_columns(connection, oid),
        indexes=tuple(map(_index, _query(connection, TREE + INDEXES, oid, locked=locked))),
        constraints=tuple(map(_constraint, _query(connection, TREE + CONSTRAINTS, oid, locked=locked))),
        triggers=tuple(map(_trigger, _query(connection, TREE + TRIGGERS, oid))),
        rules=tuple(own["rules"]),
        update_rules=tuple(own["update_rules"]),
        is_partition=own["is_partition"],
        heirs=tuple(own["heirs"]),
        unrouted=tuple(row["name"] for row in partitions if row["is_unrouted"]),
        lacking_remainders=tuple(row["name"] for row in partitions if row["lacks_remainders"]),
        stricter=tuple(row["name"] for row in partitions if row["is_stricter"]),
        computing_otherwise=tuple(row["name"] for row in partitions if row["computes_otherwise"]),
        routes=tuple(
            Route(row["name"], row["expressions"] or "", row["bounds"] or "", tuple(row["routing_columns"]))
            for row in partitions
            if row["has_expressions"]
        ),
        foreign=tuple(row["name"] for row in partitions if row["kind"] == "f"),
        unlogged=tuple(row["name"] for row in partitions if row["is_unlogged"]),
        rejecting_updates=tuple((row["name"], row["update_obstacle"]) for row in partitions if row["update_obstacle"]),
        has_row_security=own["has_row_security"],
        role=own["role"],
        missing_rights=tuple(own["missing"]),
    )


def read_columns(connection: psycopg.Connection[Any], oid: int) -> tuple[Column, ...]:
    """Read the columns of the table with this object id."""
    types = {row["oid"]: row for row in _query(connection, TYPES, oid)}
    return tuple(_column(row, types) for row in _query(connection, COLUMNS, oid))


def fingerprint(table: Table) -> str:
    """Return a short string that changes if the table's definition changes.

    Tasks and the driver compute the same string. So the definition contains no sets, which each process orders differently.
    """
    return hashlib.sha1(repr(table).encode(), usedforsecurity=False).hexdigest()


def _query(
    connection: psycopg.Connection[Any], statement: LiteralString, oid: int, **arguments: object
) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, {"oid": oid, **arguments}).fetchall()


def _column(row: Row, types: Mapping[int, Row]) -> Column:
    kind = _type(row["type"], row["typmod"], row["sql"], types)
    return Column(
        number=row["number"],
        name=row["name"],
        type=kind,
        is_nullable=not (row["is_required"] or kind.is_required),
        default=row["default"],
        generated=_GENERATED.get(row["identity"] or row["generated"], ""),
        sources=tuple(row["sources"]),
        forbidden_sequence=row["forbidden_sequence"] or "",
    )


def _type(oid: int, typmod: int, sql: str, types: Mapping[int, Row]) -> ColumnType:
    found, is_array, is_required = types[oid], False, False
    while found["base"] or found["element"]:
        if found["base"]:
            is_required = is_required or (found["is_required"] and not is_array)
            typmod = found["typmod"] if typmod == -1 else typmod
        elif is_array:
            return ColumnType(sql, "", is_array=True)  # an array whose elements are a domain over an array
        else:
            is_array = True
        found = types[found["base"] or found["element"]]
    kind = _kind(found)
    limited = typmod >= _VARIABLE_HEADER
    precision, scale = _digits(typmod) if kind == "numeric" and limited else (None, 0)
    return ColumnType(
        sql=sql,
        kind=kind,
        is_array=is_array,
        length=typmod - _VARIABLE_HEADER if kind in {"varchar", "bpchar"} and limited else None,
        precision=precision,
        scale=scale,
        labels=tuple(found["labels"]),
        is_required=is_required,
    )


def _kind(row: Row) -> str:
    if row["kind"] == "e":
        return "enum"
    # An extension may be in any schema. A user-defined type with the same name may accept different input.
    is_known = row["kind"] == "b" and (row["is_built_in"] or row["name"] == "citext")
    return row["name"] if is_known else ""


def _digits(typmod: int) -> tuple[int, int]:
    """Return a ``numeric`` type's precision and scale. Since PostgreSQL 15, the scale may be negative."""
    packed = typmod - _VARIABLE_HEADER
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 0x400) - 0x400


def _index(row: Row) -> Index:
    definition = row["definition"]
    return Index(
        name=row["name"],
        method=row["method"],
        columns=tuple(row["columns"]),
        is_unique=row["is_unique"],
        is_immediate=row["is_immediate"],
        is_valid=row["is_valid"],
        is_partial=row["is_partial"],
        has_expressions=row["has_expressions"],
        compares_otherwise=row["compares_otherwise"],
        is_own=row["is_own"],
        equals=tuple(row["equals"]),
        stored=tuple(row["stored"]),
        sources=tuple(row["sources"]),
        expression_columns=tuple(row["expression_columns"]),
        predicate=tuple(row["predicate"]),
        has_fallible_predicate=row["has_fallible_predicate"],
        has_extremes=row["has_extremes"],
        definition=definition.replace(" NULLS NOT DISTINCT", "", 1) if row["is_strict"] else definition,
    )


def _constraint(row: Row) -> Constraint:
    return Constraint(**{**row, "columns": tuple(row["columns"])})


def _trigger(row: Row) -> Trigger:
    events = tuple(event for bit, event in _EVENTS.items() if row["events"] & bit)
    return Trigger(row["name"], row["table"], events)
