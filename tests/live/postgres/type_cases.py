"""The pairs of types whose values the tests compare with INSERT: values at every limit, and some beyond it."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.live.postgres.support import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

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
    '"\\\\u0000"', '"\\\\\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\udc00"', '"\\x"', '"\t"', '"\u2028"', "[1] x",
    '["\\u0000"]', '{"\\u0000": 1}',
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
INTERVALS = [0, 1, -1, 86_399_999_999, 86_400_000_000, 86_400_000_001, -86_400_000_001, 2**63 - 1, -(2**63) + 1]


def decimals(kind: pa.DataType) -> list[Decimal]:
    """The values in the list that fit the type."""
    assert isinstance(kind, pa.Decimal128Type)
    limit = Decimal(10) ** (kind.precision - kind.scale)
    rounded = [Decimal(text).quantize(Decimal(1).scaleb(-kind.scale)) for text in _DECIMALS]
    return [value for value in rounded if abs(value) < limit]


def moments(zone: dt.timezone | None) -> list[dt.datetime]:
    return [dt.datetime.fromisoformat(text).replace(tzinfo=zone) for text in _TIMES]


#: An Arrow type as Spark makes it, values, the PostgreSQL type of a literal, and the column types that accept the values.
CASES: Sequence[tuple[pa.DataType, Sequence[Any], str, Sequence[str]]] = [
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
PAIRS = [
    pytest.param(kind, values, literal, column, id=f"{kind}-{column}")
    for kind, values, literal, columns in CASES
    for column in columns
]


def make_types(connection: psycopg.Connection[Any], *, has_extensions: bool = True) -> None:
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
