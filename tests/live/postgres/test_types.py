"""A value is written exactly as INSERT would store it, and is reported as bad if and only if PostgreSQL itself rejects it."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from tests.live.postgres.support import batch, content, copy, created, run
from tests.live.postgres.type_cases import CASES, INTERVALS, PAIRS
from twopc.sinks.postgres.rows import fit_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    Connection = psycopg.Connection[Any]


def stored(connection: Connection, literal: str, value: Any) -> str | None:
    """What INSERT stores, as text; None if PostgreSQL rejects the value."""
    if isinstance(value, str) and "\0" in value:
        return None  # the client itself rejects the value
    cast = sql.SQL("") if literal == "unknown" else sql.SQL("::") + sql.Identifier(literal)
    statement = sql.SQL("INSERT INTO inserted VALUES (%s{}) RETURNING '[' || v::text || ']'").format(cast)
    try:
        found = connection.execute(statement, [value]).fetchone()
    except psycopg.DataError:
        return None
    assert found
    return str(found[0])


def shown(connection: Connection, name: str) -> list[str]:
    statement = sql.SQL("SELECT '[' || v::text || ']' FROM {} ORDER BY ctid").format(sql.Identifier(name))
    return [text for (text,) in connection.execute(statement)]


@pytest.mark.parametrize(("kind", "values", "literal", "column"), PAIRS)
def test_a_value_is_stored_as_insert_would_store_it_or_counts_as_a_bad_record_if_insert_rejects_it(
    typed: Connection, kind: pa.DataType, values: Sequence[Any], literal: str, column: str
) -> None:
    _compare(typed, kind, values, literal, column)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("kind", "values", "literal", "column"), [pair for pair in PAIRS if pair.values[3] != "citext"]
)
def test_the_oldest_postgresql_version_stores_the_same_values(
    older: Connection, kind: pa.DataType, values: Sequence[Any], literal: str, column: str
) -> None:
    _compare(older, kind, values, literal, column)


def _compare(connection: Connection, kind: pa.DataType, values: Sequence[Any], literal: str, column: str) -> None:
    created(connection, f"v {column}", name="inserted")
    expected = [stored(connection, literal, value) for value in values]
    table = created(connection, f"v {column}")
    rows = batch(v=pa.array(values, kind))
    bad = fit_rows(rows.schema, table).bad_rows(rows)
    assert sorted(bad) == [row for row, wanted in enumerate(expected) if wanted is None], bad
    good = [row for row in range(len(values)) if row not in bad]
    copy(connection, table, rows.take(pa.array(good, pa.int64())))
    assert shown(connection, "target") == [wanted for wanted in expected if wanted is not None]
    run(connection, "TRUNCATE target")
    _compare_arrays(connection, kind, [values[row] for row in good], column)


def _compare_arrays(connection: Connection, kind: pa.DataType, values: Sequence[Any], column: str) -> None:
    """An array of the good values has the same elements, and its nulls stay apart from empty ones."""
    copy(connection, created(connection, f"v {column}"), batch(v=pa.array(values, kind)))
    singly = shown(connection, "target")
    table = created(connection, f"v {column}[]")
    lists = pa.array([values, [], None, [None, *values[:1]]], pa.list_(kind))
    sliced = batch(v=pa.concat_arrays([pa.array([values[:1]], pa.list_(kind)), lists])).slice(1)
    assert fit_rows(sliced.schema, table).bad_rows(sliced) == {}
    copy(connection, table, sliced)
    found = connection.execute(
        b"SELECT ARRAY(SELECT '[' || e::text || ']' FROM unnest(v) WITH ORDINALITY u(e, n) ORDER BY n), cardinality(v)"
        b" FROM target ORDER BY ctid"
    ).fetchall()
    assert found == [(singly, len(values)), ([], 0), ([], None), ([None, *singly[:1]], 1 + len(values[:1]))]


@pytest.mark.parametrize("seed", range(3))
def test_random_decimals_are_rejected_exactly_where_they_overflow_in_postgresql(typed: Connection, seed: int) -> None:
    chance = random.Random(seed)
    precision = chance.randint(1, 20)
    scale = chance.randint(0, precision)
    values = []
    for _ in range(60):
        power = Decimal(10) ** chance.randint(0, precision - scale)
        step = Decimal(chance.choice([-50, -49, -5, -1, 0, 1, 5, 49, 50])).scaleb(-chance.randint(scale, 15))
        values.append((power + step).quantize(Decimal("1E-15")) * chance.choice([1, -1]))
    _compare(typed, pa.decimal128(38, 15), values, "numeric", f"numeric({precision},{scale})")


def test_an_interval_is_stored_with_the_days_and_seconds_that_spark_prints(typed: Connection) -> None:
    table = created(typed, "v interval")
    copy(typed, table, batch(v=pa.array(INTERVALS, pa.duration("us"))))
    found = typed.execute(
        b"SELECT extract(day FROM v)::int8, (extract(epoch FROM v - date_trunc('day', v)) * 1000000)::int8,"
        b" (extract(epoch FROM v) * 1000000)::numeric::text FROM target ORDER BY ctid"
    ).fetchall()
    days = [int(math.copysign(abs(us) // 86_400_000_000, us)) for us in INTERVALS]
    assert [row[0] for row in found] == days
    assert [Decimal(row[2]) for row in found] == INTERVALS


def test_nulls_of_every_type_are_stored_as_nulls(typed: Connection) -> None:
    columns = {f"c{n}": (kind, column) for n, (kind, _, _, [column, *_]) in enumerate(CASES)}
    table = created(typed, *(f"{name} {column}" for name, (_, column) in columns.items()), "void text")
    rows = batch(**{name: pa.array([None, None], kind) for name, (kind, _) in columns.items()}, void=pa.nulls(2))
    assert copy(typed, table, rows).bad_rows(rows) == {}
    assert content(typed) == [(None,) * (len(columns) + 1)] * 2
