"""A value is written exactly as INSERT would store it, and is called bad exactly if PostgreSQL itself rejects it."""

from __future__ import annotations

import datetime as dt
import math
import random
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from tests.live.postgres.support import batch, connected_to_new_database, content, copy, created, run
from twopc.errors import BadRecordError, SchemaError
from twopc.sink import TYPE_NAME
from twopc.sinks.postgres.rows import fit_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.live.postgres.services import PostgresService
    from twopc.integration.services.postgres import LocalPostgres

    Connection = psycopg.Connection[Any]

_INTEGERS = [
    0,
    1,
    -1,
    2**7 - 1,
    -(2**7),
    2**15,
    2**15 - 1,
    -(2**15) - 1,
    2**31,
    2**31 - 1,
    -(2**31) - 1,
    2**53 + 1,
    2**63 - 1,
]
_DECIMALS = [
    "0",
    "0.005",
    "-0.005",
    "9.99",
    "9.994",
    "9.995",
    "-9.995",
    "99999.994",
    "99999.995",
    "12345678.9",
    "1E-10",
]
_DOUBLES = [
    0.0,
    -0.0,
    0.1,
    1 / 3,
    1e300,
    -1e300,
    3.5e38,
    3.4028235e38,
    1e-45,
    1e-46,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
]
_TEXTS = [
    "", " ", "a", "\t", "\n", "\r", "\\", "\\N", "\\.", "\\x41", "a\\tb", '"', "'", "{}", "NULL", "null", "ä\u20ac\U0001f600",
    "abc", "abc   ", "abcd", "abcd ", "äöü", "äöü  ", "äöüß", "a\0b", "\0", ",", "x" * 10_000,
]  # fmt: skip
_UUIDS = [
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}",
    "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11", "", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 ", "g0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99--9c0b-4ef8-bb6d-6bb9bd380a11",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11-", "a0e-ebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
]  # fmt: skip
_JSONS = [
    "1", "-0", "01", "1.", ".5", "1e400", "-1E+3", "9" * 5000, "true", "True", "null", "NaN", "Infinity", '"a"', "'a'", "",
    " ", " 1 ", "[1,]", "[1, [2]]", "{}", '{"a":1,"a":2}', '{"a":}', "{a:1}", '"\\u0041"', '"\\u0000"',
    '"\\\\u0000"', '"\\\\\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\udc00"', '"\\x"', '"\t"', '"\u2028"', "[1] x", '["\\u0000"]', '{"\\u0000": 1}',
    "\u00a01",
]  # fmt: skip
_NETWORKS = ["10.0.0.1", "10.0.0.0/8", "::1"]
_DAYS = ["0001-01-01", "1582-10-10", "1969-12-31", "1970-01-01", "2000-02-29", "9999-12-31"]
_TIMES = [
    "0001-01-01 00:00:00.000001",
    "1969-12-31 23:59:59.999999",
    "2024-03-31 02:30:00",
    "9999-12-31 23:59:59.999999",
]
_INTERVALS = [0, 1, -1, 86_399_999_999, 86_400_000_000, 86_400_000_001, -86_400_000_001, 2**63 - 1, -(2**63) + 1]


def decimals(kind: pa.DataType) -> list[Decimal]:
    """Those of the list that fit the type."""
    assert isinstance(kind, pa.Decimal128Type)
    limit = Decimal(10) ** (kind.precision - kind.scale)
    rounded = [Decimal(text).quantize(Decimal(1).scaleb(-kind.scale)) for text in _DECIMALS]
    return [value for value in rounded if abs(value) < limit]


def moments(zone: dt.timezone | None) -> list[dt.datetime]:
    return [dt.datetime.fromisoformat(text).replace(tzinfo=zone) for text in _TIMES]


#: An Arrow type as Spark makes it, values, the PostgreSQL type of a literal of it, and the columns that take it.
_CASES: Sequence[tuple[pa.DataType, Sequence[Any], str, Sequence[str]]] = [
    (pa.bool_(), [True, False], "bool", ["boolean"]),
    *(
        (kind, [value for value in _INTEGERS if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)], "int8", [
            "smallint", "integer", "bigint", "numeric", "numeric(5,2)", "numeric(19,0)", "numeric(3,-2)", "real",
            "double precision",
        ])
        for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
    ),
    *(
        (kind, decimals(kind), "numeric", [
            "numeric", "numeric(5,2)", "numeric(3,2)", "numeric(38,10)", "numeric(2,4)", "numeric(1000,500)", "real",
            "double precision",
        ])
        for kind in (pa.decimal128(5, 2), pa.decimal128(10, 3), pa.decimal128(38, 18))
    ),
    (pa.decimal128(20, 0), [Decimal(value) for value in _INTEGERS] + [Decimal(2**63)], "numeric", ["smallint", "bigint"]),
    (pa.float64(), _DOUBLES, "float8", ["double precision", "real"]),
    (pa.float32(), [0.0, -0.0, 0.1, 3.4028235e38, 1e-45, math.nan, math.inf], "float4", ["double precision", "real"]),
    (pa.string(), _TEXTS, "text", [
        "text", "varchar", "varchar(3)", "char(3)", "char", "bpchar", "short_text", "plain_text",
    ]),
    (pa.string(), _UUIDS, "unknown", ["uuid"]),
    (pa.string(), [*_JSONS, *_TEXTS], "unknown", ["json", "jsonb"]),
    (pa.string(), ["sad", "ok", "it''s", "", "SAD", "sad ", 'ä,"'], "unknown", ["mood"]),
    (pa.string(), _NETWORKS, "unknown", ["inet"]),
    (pa.string(), ["A", "a\tb", "a\0"], "unknown", ["citext"]),
    (pa.binary(), [b"", b"\0", b"\\", b"\\x00", bytes(range(256)), b"\xff" * 1000], "bytea", ["bytea"]),
    (pa.date32(), [dt.date.fromisoformat(text) for text in _DAYS], "date", ["date", "timestamp"]),
    (pa.timestamp("us", "UTC"), moments(dt.timezone.utc), "timestamptz", ["timestamptz", "timestamptz(3)"]),
    (pa.timestamp("us"), moments(None), "timestamp", ["timestamp", "timestamp(0)"]),
]  # fmt: skip
_PAIRS = [
    pytest.param(kind, values, literal, column, id=f"{kind}-{column}")
    for kind, values, literal, columns in _CASES
    for column in columns
]


@pytest.fixture(scope="module")
def typed(postgres_server: PostgresService) -> Iterator[Connection]:
    """A connection to a database of this file's own, with its types. A test makes its tables anew."""
    with connected_to_new_database(postgres_server.dsn) as connection:
        _make_types(connection)
        yield connection


@pytest.fixture(scope="module")
def older(older_postgres: LocalPostgres) -> Iterator[Connection]:
    """The same on the oldest version."""
    with connected_to_new_database(older_postgres.dsn) as connection:
        _make_types(connection, has_extensions=False)
        yield connection


def _make_types(connection: Connection, *, has_extensions: bool = True) -> None:
    connection.prepare_threshold = None  # a prepared INSERT keeps the types of the columns that it was prepared for
    run(
        connection,
        *(["CREATE EXTENSION citext"] if has_extensions else []),
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''''s', '', 'ä,\"')",
        "CREATE DOMAIN short_text AS varchar(3)",
        "CREATE DOMAIN plain_text AS text",
        "CREATE DOMAIN required AS text NOT NULL",
        "CREATE TYPE pair AS (a int)",
        "SET TimeZone = 'America/New_York'",
        "SET DateStyle = 'SQL, DMY'",
        "SET IntervalStyle = 'sql_standard'",
    )


def stored(connection: Connection, literal: str, value: Any) -> str | None:
    """What INSERT stores, as text; None if PostgreSQL rejects the value."""
    if isinstance(value, str) and "\0" in value:
        return None  # the client itself rejects it
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


@pytest.mark.parametrize(("kind", "values", "literal", "column"), _PAIRS)
def test_a_value_is_stored_as_insert_stores_it_or_is_a_bad_record_exactly_if_insert_rejects_it(
    typed: Connection, kind: pa.DataType, values: Sequence[Any], literal: str, column: str
) -> None:
    _compare(typed, kind, values, literal, column)


@pytest.mark.parametrize(
    ("kind", "values", "literal", "column"), [pair for pair in _PAIRS if pair.values[3] != "citext"]
)
def test_the_oldest_version_agrees(
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
def test_random_decimals_overflow_exactly_where_postgresql_says(typed: Connection, seed: int) -> None:
    chance = random.Random(seed)
    precision = chance.randint(1, 20)
    scale = chance.randint(0, precision)
    values = []
    for _ in range(60):
        power = Decimal(10) ** chance.randint(0, precision - scale)
        step = Decimal(chance.choice([-50, -49, -5, -1, 0, 1, 5, 49, 50])).scaleb(-chance.randint(scale, 15))
        values.append((power + step).quantize(Decimal("1E-15")) * chance.choice([1, -1]))
    _compare(typed, pa.decimal128(38, 15), values, "numeric", f"numeric({precision},{scale})")


def test_an_interval_has_the_days_and_seconds_that_spark_prints(typed: Connection) -> None:
    table = created(typed, "v interval")
    copy(typed, table, batch(v=pa.array(_INTERVALS, pa.duration("us"))))
    found = typed.execute(
        b"SELECT extract(day FROM v)::int8, (extract(epoch FROM v - date_trunc('day', v)) * 1000000)::int8,"
        b" (extract(epoch FROM v) * 1000000)::numeric::text FROM target ORDER BY ctid"
    ).fetchall()
    days = [int(math.copysign(abs(us) // 86_400_000_000, us)) for us in _INTERVALS]
    assert [row[0] for row in found] == days
    assert [Decimal(row[2]) for row in found] == _INTERVALS


def test_nulls_are_nulls_in_every_type(typed: Connection) -> None:
    columns = {f"c{n}": (kind, column) for n, (kind, _, _, [column, *_]) in enumerate(_CASES)}
    table = created(typed, *(f"{name} {column}" for name, (_, column) in columns.items()), "void text")
    rows = batch(**{name: pa.array([None, None], kind) for name, (kind, _) in columns.items()}, void=pa.nulls(2))
    assert copy(typed, table, rows).bad_rows(rows) == {}
    assert content(typed) == [(None,) * (len(columns) + 1)] * 2


def test_a_null_in_a_column_that_must_have_a_value_is_a_bad_record(typed: Connection) -> None:
    table = created(typed, "a text NOT NULL", "b required", "k text")
    rows = batch(a=pa.array(["x", None, "x"]), b=pa.array(["x", "x", None]), k=pa.array([None, "x", "x"]))
    bad = fit_rows(rows.schema, table, key=["k"]).bad_rows(rows)
    assert bad == {
        0: "column 'k' is null, but public.target.k is part of the key: fill it in (coalesce)",
        1: "column 'a' is null, but public.target.a is NOT NULL: fill it in (coalesce)",
        2: "column 'b' is null, but public.target.b is NOT NULL: fill it in (coalesce)",
    }


@pytest.mark.parametrize("day", [-719_163, 2_932_897])
def test_a_date_outside_sparks_own_years_is_a_bad_record(typed: Connection, day: int) -> None:
    table = created(typed, "d date", "t timestamptz", "n timestamp")
    kinds: dict[str, pa.DataType] = {"d": pa.date32(), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us")}
    good: dict[str, pa.Array[Any]] = {name: pa.array([0], kind) for name, kind in kinds.items()}
    bad = {name: pa.array([day if name == "d" else day * 86_400_000_000], kind) for name, kind in kinds.items()}
    for name in good:
        rows = batch(**{**good, name: bad[name]})
        with pytest.raises(
            BadRecordError, match=f"column '{name}' holds a date outside the years 1 to 9999: .*, in row 0"
        ):
            fit_rows(rows.schema, table).check(rows)


def test_bytes_that_are_not_utf8_are_a_bad_record(typed: Connection) -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")
    rows = batch(v=pa.Array.from_buffers(pa.string(), 2, [None, offsets, data]))
    table = created(typed, "v text")
    with pytest.raises(
        BadRecordError, match=r"column 'v' holds bytes that are not UTF-8: b'a\\xff', in row 0 of an Arrow batch of 2"
    ):
        fit_rows(rows.schema, table).check(rows)


@pytest.mark.parametrize(
    ("kind", "column", "wanted"),
    [
        (pa.int64(), "text", "string"),
        (pa.float64(), "numeric(10,2)", "decimal, and integers"),
        (pa.float64(), "bigint", "tinyint, smallint, int, bigint"),
        (pa.decimal128(10, 2), "bigint", "tinyint, smallint, int, bigint"),
        (pa.timestamp("us", "UTC"), "timestamp", "timestamp_ntz, and date"),
        (pa.timestamp("us"), "timestamptz", "timestamp"),
        (pa.date32(), "timestamptz", "timestamp"),
        (pa.string(), "date", "date"),
        (pa.string(), "integer[]", "array<tinyint"),
        (pa.list_(pa.int32()), "integer", "tinyint"),
        (pa.list_(pa.list_(pa.int32())), "integer[]", "array<tinyint"),
        (pa.struct([("a", pa.int32())]), "jsonb", "a string with JSON, such as that of to_json"),
        (pa.map_(pa.string(), pa.int32()), "jsonb", "to_json"),
        (pa.binary(), "uuid", "string"),
        (pa.string(), "money", "the sink does not know that type"),
        (pa.string(), "point", "the sink does not know that type"),
        (pa.string(), "int4range", "the sink does not know that type"),
        (pa.struct([("a", pa.int32())]), "pair", "the sink does not know that type"),
    ],
    ids=str,
)
def test_a_type_that_would_have_to_be_guessed_is_refused_by_name(
    typed: Connection, kind: pa.DataType, column: str, wanted: str
) -> None:
    table = created(typed, f"v {column}")
    field = pa.field("v", kind, metadata={TYPE_NAME: b"what Spark calls it"})
    with pytest.raises(SchemaError) as refused:
        fit_rows(pa.schema([field]), table)
    wanted_type = table.columns[0].type.sql
    assert str(refused.value).startswith(
        f"column 'v' is what Spark calls it, but public.target.v is {wanted_type}. Nothing was written. For {wanted_type}, "
    )
    assert wanted in str(refused.value)


def test_a_type_that_arrow_does_not_have_is_refused_and_not_written_as_null(typed: Connection) -> None:
    table = created(typed, "v interval")
    field = pa.field("v", pa.null(), metadata={TYPE_NAME: b"interval year to month"})
    with pytest.raises(SchemaError, match=r"column 'v' is interval year to month, but public.target.v is interval"):
        fit_rows(pa.schema([field]), table)


def test_columns_are_matched_by_name_and_the_case_counts_only_where_it_must(typed: Connection) -> None:
    table = created(typed, '"Id" int', '"id" int', "plain int", '"we""ird, name" int')
    rows = batch(**{"id": pa.array([1]), "Id": pa.array([2]), "PLAIN": pa.array([3]), 'we"ird, name': pa.array([4])})
    copy(typed, table, rows)
    assert content(typed) == [(2, 1, 3, 4)]
    with pytest.raises(SchemaError, match=r"column 'ID' may be 'Id', 'id' of public.target"):
        fit_rows(pa.schema([("ID", pa.int64())]), table)
    with pytest.raises(SchemaError, match=r"the columns 'plain' and 'Plain' are both public.target.plain"):
        fit_rows(pa.schema([("plain", pa.int64()), ("Plain", pa.int64())]), table)
    with pytest.raises(SchemaError, match=r"column 'other' is not in public.target \(it has 'Id', 'id', 'plain', "):
        fit_rows(pa.schema([("other", pa.int64())]), table)


def test_a_column_that_the_table_can_fill_may_be_omitted_and_one_that_it_computes_must_be(
    typed: Connection,
) -> None:
    table = created(
        typed,
        "a int NOT NULL",
        "b int",
        "c int NOT NULL DEFAULT 7",
        "d bigserial",
        "e int GENERATED ALWAYS AS IDENTITY",
        "f int GENERATED BY DEFAULT AS IDENTITY",
        "g int GENERATED ALWAYS AS (a * 2) STORED",
    )
    copy(typed, table, batch(a=pa.array([1, 2])))
    assert content(typed) == [(1, None, 7, 1, 1, 1, 2), (2, None, 7, 2, 2, 2, 4)]
    assert fit_rows(pa.schema([("a", pa.int64()), ("f", pa.int32())]), table).names == ("a", "f")
    with pytest.raises(SchemaError, match=r"the DataFrame has no column 'a' .*NOT NULL without a default"):
        fit_rows(pa.schema([("b", pa.int64())]), table)
    for computed in ("e", "g"):
        with pytest.raises(SchemaError, match=f"{computed} is GENERATED ALWAYS"):
            fit_rows(pa.schema([("a", pa.int64()), (computed, pa.int32())]), table)
    with pytest.raises(SchemaError, match=r"no column 'b' .*which is in the key"):
        fit_rows(pa.schema([("a", pa.int64())]), table, key=["a", "b"])


def test_a_batch_too_large_for_one_piece_is_written_in_several(typed: Connection) -> None:
    table = created(typed, "v bytea")
    values = [bytes([n]) * (20 * 2**20) for n in range(4)]
    pieces = list(fit_rows(pa.schema([("v", pa.binary())]), table).copy_text(batch(v=pa.array(values))))
    assert len(pieces) == 2
    copy(typed, table, batch(v=pa.array(values)))
    assert typed.execute(b"SELECT length(v), get_byte(v, 7) FROM target ORDER BY ctid").fetchall() == [
        (20 * 2**20, n) for n in range(4)
    ]


def test_writing_imports_no_pandas() -> None:
    script = """
import sys
import pyarrow as pa
from twopc.sinks.postgres.rows import RowFormat
from twopc.sinks.postgres.target import Column, ColumnType

def kept(kind, values, buffers):
    return pa.Array.from_buffers(kind, values, buffers)

zeros = pa.py_buffer(bytes(64))
kinds = {"int4": pa.int32(), "int8": pa.int64(), "numeric": pa.decimal128(10, 2), "float4": pa.float64(), "bool": pa.bool_(),
         "date": pa.date32(), "timestamptz": pa.timestamp("us", "UTC"), "timestamp": pa.timestamp("us"),
         "interval": pa.duration("us")}
columns = {name: kept(kind, 2, [None, zeros]) for name, kind in kinds.items()}
ends = pa.py_buffer(b"\\0\\0\\0\\0\\1\\0\\0\\0\\2\\0\\0\\0")
for name, kind, data in (("text", pa.string(), b"ab"), ("varchar", pa.string(), b"ab"), ("bytea", pa.binary(), b"ab"),
                         ("enum", pa.string(), b"ab"), ("json", pa.string(), b"12")):
    columns[name] = kept(kind, 2, [None, ends, pa.py_buffer(data)])
columns["lists"] = pa.ListArray.from_arrays(kept(pa.int32(), 3, [None, ends]), columns["text"])
rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
types = {name: ColumnType(name, name, length=3, labels=("a", "b"), precision=10, scale=2) for name in columns}
types["lists"] = ColumnType("text[]", "text", is_array=True)
wanted = RowFormat("t", tuple((name, Column(1, name, kind)) for name, kind in types.items()))
assert wanted.bad_rows(rows) == {}, wanted.bad_rows(rows)
assert b"".join(wanted.copy_text(rows)).count(b"\\n") == 2
assert "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
