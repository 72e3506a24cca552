from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.postgres.support import run
from twopc.errors import ConfigurationError
from twopc.sinks.postgres.table import read_table
from twopc.sinks.postgres.target import Column, ColumnType

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

_STATEMENTS = (
    'CREATE SCHEMA "My schema"',
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN amount AS numeric(12,2) NOT NULL CHECK (value >= 0)",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE TABLE other (id int PRIMARY KEY)",
    """
    CREATE TABLE "My schema"."The ""table" (
      id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
      code varchar(10) NOT NULL UNIQUE,
      "Amount" amount DEFAULT 1.5,
      scaled numeric(3,-2),
      gone int,
      kinds moods,
      words text[],
      note char(3),
      shown text GENERATED ALWAYS AS (upper(code)) STORED,
      other int REFERENCES other,
      CHECK ("Amount" < scaled)
    )
    """,
    'ALTER TABLE "My schema"."The ""table" DROP COLUMN gone',
    'CREATE INDEX "a USING b" ON "My schema"."The ""table" (lower(code), "Amount" DESC) INCLUDE (note) WHERE note IS NOT NULL',
    'CREATE UNIQUE INDEX strict ON "My schema"."The ""table" (scaled, note) NULLS NOT DISTINCT',
    "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
    'CREATE TRIGGER checked BEFORE INSERT OR UPDATE ON "My schema"."The ""table" FOR EACH ROW EXECUTE FUNCTION f()',
    'CREATE TRIGGER off AFTER DELETE ON "My schema"."The ""table" FOR EACH ROW EXECUTE FUNCTION f()',
    'ALTER TABLE "My schema"."The ""table" DISABLE TRIGGER off',
    'CREATE RULE kept AS ON DELETE TO "My schema"."The ""table" DO INSTEAD NOTHING',
)
_NAME = '"My schema"."The ""table"'


@pytest.fixture(params=["connection", pytest.param("older_connection", marks=pytest.mark.whole)], ids=["18", "16"])
def filled(request: pytest.FixtureRequest) -> Connection:
    """A database with a table that has one of everything."""
    connection: Connection = request.getfixturevalue(request.param)
    run(connection, *_STATEMENTS)
    return connection


def test_every_fact_about_the_table_that_matters_to_the_sink_is_read(filled: Connection) -> None:
    table = read_table(filled, _NAME)
    assert (table.schema, table.name, table.kind, table.persistence) == ("My schema", 'The "table', "r", "p")
    assert table.columns == (
        Column(1, "id", ColumnType("bigint", "int8"), is_nullable=False, generated="ALWAYS"),
        Column(2, "code", ColumnType("character varying(10)", "varchar", length=10), is_nullable=False),
        Column(
            3,
            "Amount",
            ColumnType("amount", "numeric", precision=12, scale=2, is_required=True),
            is_nullable=False,
            default="1.5",
        ),
        Column(4, "scaled", ColumnType("numeric(3,-2)", "numeric", precision=3, scale=-2)),
        Column(6, "kinds", ColumnType("moods", "enum", is_array=True, labels=("sad", "ok"))),
        Column(7, "words", ColumnType("text[]", "text", is_array=True)),
        Column(8, "note", ColumnType("character(3)", "bpchar", length=3)),
        Column(9, "shown", ColumnType("text", "text"), generated="EXPRESSION", sources=("code",)),
        Column(10, "other", ColumnType("integer", "int4")),
    )
    assert [(index.columns, index.is_unique) for index in table.indexes] == [
        (("code",), True),
        (("id",), True),
        (("Amount",), False),
        (("scaled", "note"), True),
    ]
    assert [(one.kind, one.columns) for one in table.constraints] == [
        ("c", ("Amount", "scaled")),
        ("f", ("other",)),
    ]
    assert [(one.name, one.events) for one in table.triggers] == [("checked", ("INSERT", "UPDATE"))]
    assert table.rules == ("kept",)
    assert (table.role, table.missing_rights, table.has_row_security) == ("postgres", (), False)
    assert pickle.loads(pickle.dumps(table)) == table  # noqa: S301 - the bytes are our own
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.oid = 0  # type: ignore[misc]


_FINGERPRINT = """
import sys, psycopg
from twopc.sinks.postgres.table import fingerprint, read_table
with psycopg.connect(sys.argv[1]) as connection:
    print(fingerprint(read_table(connection, "target")))
"""


def test_the_fingerprint_is_the_same_in_every_process(connection: Connection, database: str) -> None:
    """PySpark gives all workers the same hash seed. The driver has a random one, so its sets have another order."""
    run(
        connection,
        "CREATE TABLE target (id int)",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON target FOR EACH ROW EXECUTE FUNCTION f()",
    )
    command = [sys.executable, "-c", _FINGERPRINT, database]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("0", "1", "2", "3")]
    found = [subprocess.run(command, env=one, capture_output=True, check=True).stdout for one in environments]
    assert len(set(found)) == 1


def test_constraints_and_triggers_of_the_same_name_are_read_in_the_same_order_every_time(
    connection: Connection,
) -> None:
    """The fingerprint depends on the order."""
    run(
        connection,
        "CREATE TABLE target (id int CONSTRAINT positive CHECK (id > 0)) PARTITION BY LIST (id)",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
    )
    for number in (3, 1, 2):
        run(
            connection,
            f"CREATE TABLE p{number} PARTITION OF target FOR VALUES IN ({number})",
            f"CREATE TRIGGER t BEFORE INSERT ON p{number} FOR EACH ROW EXECUTE FUNCTION f()",
        )
    table = read_table(connection, "target")
    assert [one.table for one in table.constraints] == ["target", "p1", "p2", "p3"]
    assert [one.table for one in table.triggers] == ["p1", "p2", "p3"]


def test_an_index_can_be_created_again_on_a_copy_of_the_table(filled: Connection) -> None:
    run(filled, f"CREATE TABLE copy (LIKE {_NAME})")
    for index in read_table(filled, _NAME).indexes:
        run(filled, f"CREATE INDEX ON copy USING {index.definition}")
    copied = read_table(filled, "copy").indexes
    assert {index.columns for index in copied} == {("code",), ("id",), ("Amount",), ("scaled", "note")}
    assert not any(index.is_unique for index in copied)
    assert [index.is_partial and index.has_expressions for index in copied].count(True) == 1


def test_the_tree_of_a_partitioned_table_is_read(filled: Connection) -> None:
    run(
        filled,
        "CREATE TABLE parts (id int, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE parts_old PARTITION OF parts FOR VALUES FROM (MINVALUE) TO ('2020-01-01') PARTITION BY LIST (id)",
        "CREATE TABLE parts_rest PARTITION OF parts DEFAULT",
        "ALTER TABLE parts_rest ADD CHECK (id > 0), ALTER note SET NOT NULL",
        "CREATE UNIQUE INDEX rest_only ON parts_rest (note)",
        "CREATE TRIGGER of_partition AFTER INSERT ON parts_rest FOR EACH ROW EXECUTE FUNCTION f()",
    )
    table = read_table(filled, "parts")
    assert table.kind == "p"
    assert table.unrouted == ("parts_old",)
    assert table.stricter == ("parts_rest",)
    assert [(index.name, index.is_own) for index in table.indexes] == [("parts_pkey", True), ("rest_only", False)]
    assert [(one.table, one.is_inherited) for one in table.constraints] == [("parts_rest", False)]
    assert [(one.name, one.table) for one in table.triggers] == [("of_partition", "parts_rest")]
    assert read_table(filled, "parts_rest").is_partition


def test_the_rights_of_the_current_role_count(filled: Connection) -> None:
    run(
        filled,
        "CREATE TABLE plain (id int)",
        "ALTER TABLE plain ENABLE ROW LEVEL SECURITY",
        "DROP ROLE IF EXISTS writer",
        "CREATE ROLE writer",
        "GRANT INSERT ON plain TO writer",
        "SET ROLE writer",
    )
    table = read_table(filled, "plain")
    assert (table.role, table.missing_rights, table.has_row_security) == (
        "writer",
        ("SELECT", "UPDATE"),
        True,
    )
    run(filled, "RESET ROLE", "DROP OWNED BY writer", "DROP ROLE writer")


@pytest.mark.parametrize("name", ["missing", '"MISSING"', "nowhere.target", "target_of_other_db"])
def test_a_missing_table_is_reported(connection: Connection, name: str) -> None:
    with pytest.raises(ConfigurationError, match="does not exist, or the role has no permission to see its schema"):
        read_table(connection, name)


def test_a_malformed_table_name_is_refused_like_a_missing_table(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match=r"table 'a\.b\.c\.d"):
        read_table(connection, "a.b.c.d; DROP TABLE x")
