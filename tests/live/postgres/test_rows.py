"""How a batch's columns match the table's, which columns are rejected, and which rows are bad regardless of their types."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.live.postgres.support import batch, content, copy, created
from twopc.errors import BadRecordError, SchemaError
from twopc.sink import TYPE_NAME
from twopc.sinks.postgres.rows import fit_rows

Connection = psycopg.Connection[Any]


def test_a_null_in_a_column_that_must_have_a_value_counts_as_a_bad_record(typed: Connection) -> None:
    table = created(typed, "a text NOT NULL", "b required", "k text")
    rows = batch(a=pa.array(["x", None, "x"]), b=pa.array(["x", "x", None]), k=pa.array([None, "x", "x"]))
    bad = fit_rows(rows.schema, table, key=["k"]).bad_rows(rows)
    assert bad == {
        0: "column 'k' is null, but public.target.k is part of the key: replace the null (coalesce)",
        1: "column 'a' is null, but public.target.a is NOT NULL: replace the null (coalesce)",
        2: "column 'b' is null, but public.target.b is NOT NULL: replace the null (coalesce)",
    }


@pytest.mark.parametrize("day", [-719_163, 2_932_897])
def test_a_date_outside_the_years_that_spark_supports_counts_as_a_bad_record(typed: Connection, day: int) -> None:
    table = created(typed, "d date", "t timestamptz", "n timestamp")
    kinds: dict[str, pa.DataType] = {"d": pa.date32(), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us")}
    good: dict[str, pa.Array[Any]] = {name: pa.array([0], kind) for name, kind in kinds.items()}
    bad = {name: pa.array([day if name == "d" else day * 86_400_000_000], kind) for name, kind in kinds.items()}
    for name in good:
        rows = batch(**{**good, name: bad[name]})
        shown = f"{day} days" if name == "d" else f"{day * 86_400_000_000} microseconds"
        why = f"column '{name}' contains a date outside the years 1 to 9999: {shown} since 1970-01-01, in row 0"
        with pytest.raises(BadRecordError, match=why):
            fit_rows(rows.schema, table).check(rows)


def test_bytes_that_are_not_utf8_count_as_a_bad_record(typed: Connection) -> None:
    offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")
    rows = batch(v=pa.Array.from_buffers(pa.string(), 2, [None, offsets, data]))
    table = created(typed, "v text")
    with pytest.raises(
        BadRecordError,
        match=r"column 'v' contains bytes that are not UTF-8: b'a\\xff', in row 0 of an Arrow batch of 2 rows",
    ):
        fit_rows(rows.schema, table).check(rows)


@pytest.mark.parametrize(
    ("kind", "column", "wanted"),
    [
        (pa.int64(), "text", "string"),
        (pa.float64(), "numeric(10,2)", "decimal and integers"),
        (pa.float64(), "bigint", "tinyint, smallint, int, bigint"),
        (pa.decimal128(10, 2), "bigint", "tinyint, smallint, int, bigint"),
        (pa.timestamp("us", "UTC"), "timestamp", "timestamp_ntz and date"),
        (pa.timestamp("us"), "timestamptz", "timestamp"),
        (pa.date32(), "timestamptz", "timestamp"),
        (pa.string(), "date", "date"),
        (pa.string(), "integer[]", "array<tinyint"),
        (pa.list_(pa.int32()), "integer", "tinyint"),
        (pa.list_(pa.list_(pa.int32())), "integer[]", "array<tinyint"),
        (pa.struct([("a", pa.int32())]), "jsonb", "a string that contains JSON, such as the result of to_json"),
        (pa.map_(pa.string(), pa.int32()), "jsonb", "to_json"),
        (pa.binary(), "uuid", "string"),
        (pa.string(), "money", "The sink does not support this type"),
        (pa.string(), "point", "The sink does not support this type"),
        (pa.string(), "int4range", "The sink does not support this type"),
        (pa.struct([("a", pa.int32())]), "pair", "The sink does not support this type"),
    ],
    ids=str,
)
def test_an_ambiguous_type_is_rejected_with_an_error_that_identifies_it(
    typed: Connection, kind: pa.DataType, column: str, wanted: str
) -> None:
    table = created(typed, f"v {column}")
    field = pa.field("v", kind, metadata={TYPE_NAME: b"what Spark calls it"})
    with pytest.raises(SchemaError) as refused:
        fit_rows(pa.schema([field]), table)
    wanted_type = table.columns[0].type.sql
    assert str(refused.value).startswith(
        f"column 'v' is what Spark calls it, but public.target.v is {wanted_type}. Nothing was written. "
    )
    assert wanted in str(refused.value)


def test_a_type_unknown_to_arrow_is_refused_and_not_written_as_null(typed: Connection) -> None:
    table = created(typed, "v interval")
    field = pa.field("v", pa.null(), metadata={TYPE_NAME: b"interval year to month"})
    with pytest.raises(SchemaError, match=r"column 'v' is interval year to month, but public.target.v is interval"):
        fit_rows(pa.schema([field]), table)


def test_columns_are_matched_by_name_and_case_matters_only_where_it_must(typed: Connection) -> None:
    table = created(typed, '"Id" int', '"id" int', "plain int", '"we""ird, name" int')
    rows = batch(**{"id": pa.array([1]), "Id": pa.array([2]), "PLAIN": pa.array([3]), 'we"ird, name': pa.array([4])})
    copy(typed, table, rows)
    assert content(typed) == [(2, 1, 3, 4)]
    with pytest.raises(SchemaError, match=r"column 'ID' matches more than one column of public.target: 'Id', 'id'"):
        fit_rows(pa.schema([("ID", pa.int64())]), table)
    with pytest.raises(SchemaError, match=r"the columns 'plain' and 'Plain' both match public.target.plain"):
        fit_rows(pa.schema([("plain", pa.int64()), ("Plain", pa.int64())]), table)
    with pytest.raises(SchemaError, match=r"column 'other' is not in public.target \(it has 'Id', 'id', 'plain', "):
        fit_rows(pa.schema([("other", pa.int64())]), table)


def test_columns_with_a_default_may_be_omitted_and_computed_columns_must_be_omitted(
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
    with pytest.raises(SchemaError, match=r"the DataFrame has no column 'a' .*NOT NULL and has no default"):
        fit_rows(pa.schema([("b", pa.int64())]), table)
    for computed in ("e", "g"):
        with pytest.raises(SchemaError, match=f"{computed} is GENERATED ALWAYS"):
            fit_rows(pa.schema([("a", pa.int64()), (computed, pa.int32())]), table)
    with pytest.raises(SchemaError, match=r"no column 'b' .*which is part of the key"):
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


def test_a_write_does_not_import_pandas() -> None:
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
