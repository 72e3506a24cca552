"""A schema in which another user has defined objects that the sink's SQL must never reach. Each raises an error if it is used."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

from tests.live.postgres.support import run
from tests.postgres_calls import calls, strings

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

_RAISES: Final = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hostile code ran'; END $$"
#: The types of the catalog's columns and of literals in the sink's SQL.
_TYPES: Final = (
    *("oid", "int2", "int4", "int8", "text", "varchar", "name", '"char"', "bool", "bytea", "jsonb", "pg_node_tree"),
    *("regclass", "regproc", "oid[]", "int2[]", "text[]", "name[]", "int2vector", "oidvector"),
)
_OPERATORS: Final = ("=", "<>", "<", ">", "<=", ">=", "||", "~", "@>", "<@", "->>", "?", "+", "-", "/")
#: A call with literals matches these functions better than the system's, whose parameters have other types, or are variadic.
_ARGUMENTS: Final = (
    *(("oid",), ("int4",), ("int8",), ("text",), ("name",), ("regclass",), ("pg_node_tree",), ("oid[]",), ("int2[]",)),
    *(("text[]",), ("int2", "int4"), ("int4", "int2"), ("oid", "text"), ("regclass", "text"), ("name", "text")),
    *(("text", "int4"), ("text", "text"), ("text", "text", "text"), ("text", "text", "bool"), ("bigint", "text")),
)
_AGGREGATES: Final = {"count", "max", "min", "sum"}


def create_functions(connection: Connection, schema: str) -> None:
    """Define every function that the sink calls: with the system's own parameters, and with better matches."""
    names = {call.name for call in calls()}
    same = connection.execute(
        "SELECT p.proname, array_to_string(p.proargtypes::oid[]::regtype[], ', ') FROM pg_proc p WHERE p.proname = ANY(%s) "
        "AND p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f'",
        [sorted(names)],
    ).fetchall()
    better = [(name, ", ".join(types)) for name in names - _AGGREGATES for types in _ARGUMENTS]
    for name, arguments in same + better:
        if '"any"' not in arguments:  # only for functions in C
            run(connection, f"CREATE OR REPLACE FUNCTION {schema}.{name}({arguments}) RETURNS text {_RAISES}")
    for name, kind in product(_AGGREGATES, ("int4", "int8", "text", "*")):
        step = "" if kind == "*" else f", {kind}"
        run(
            connection,
            f"CREATE OR REPLACE FUNCTION {schema}.step(int8{step}) RETURNS int8 {_RAISES}",
            f"CREATE OR REPLACE FUNCTION {schema}.last(int8) RETURNS int8 {_RAISES}",
            f"CREATE AGGREGATE {schema}.{name}({kind}) "
            f"(SFUNC = {schema}.step, STYPE = int8, INITCOND = '0', FINALFUNC = {schema}.last)",
        )


def create_operators(connection: Connection, schema: str) -> None:
    """Define every operator that the sink uses, for all pairs of types."""
    for left, right in product(_TYPES, repeat=2):
        run(connection, f"CREATE FUNCTION {schema}.apply({left}, {right}) RETURNS bool {_RAISES}")
        types = f"LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {schema}.apply"
        run(connection, "; ".join(f"CREATE OPERATOR {schema}.{operator} ({types})" for operator in _OPERATORS))


def create_catalogs(connection: Connection, schema: str) -> None:
    """Define useless views with the names of the system catalogs that the sink reads."""
    found = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')"
    ).fetchall()
    text = "\n".join(text for _, text in strings())
    names = [name for (name,) in found if f"pg_catalog.{name} " in text]
    assert "pg_class" in names
    run(connection, *(f"CREATE VIEW {schema}.{name} AS SELECT 'hostile' AS nothing" for name in names))
