"""The part of a budget that rows use, as the driver counts it; ``tests/live/test_spark_budget.py`` compares it with Spark."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pyarrow as pa
import pytest

from twopc.integration.spark.budget import spent_bytes

COUNTED: list[tuple[Any, Any, int]] = [
    (pa.string(), ["ключ", None, ""], 8),
    (pa.large_binary(), [b"\x00\xff", None, b"x"], 3),
    (pa.bool_(), [True, None, False], 0),
    (pa.decimal128(20, 3), [decimal.Decimal("1.5"), None, None], 0),
    (pa.null(), [None, None, None], 0),
    (pa.timestamp("us", "UTC"), [1, None, 2], 0),
    (pa.list_(pa.string()), [["ab", None], None, []], 2 * 4 + 2),
    (pa.map_(pa.string(), pa.binary()), [[("k", b"vv")], None, []], 4 + 3),
    (pa.struct([("a", pa.string()), ("b", pa.int64())]), [{"a": "abc", "b": 1}, None, {"a": None, "b": 2}], 3),
]


@pytest.mark.parametrize(("kind", "values", "more"), COUNTED, ids=[str(kind) for kind, *_ in COUNTED])
def test_a_column_counts_as_four_bytes_per_row_plus_its_bytes_and_its_text(
    kind: Any, values: list[Any], more: int
) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], ["c"])
    assert spent_bytes([batch, batch.slice(3)]) == 4 * 3 + more
    assert spent_bytes([batch.slice(0, 1), batch.slice(1)]) == 4 * 3 + more


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a"], pa.string_view()),
        pa.array([b"a"], pa.binary_view()),
        pa.array(["a"]).dictionary_encode(),
        pa.array([[b"a"]], pa.list_(pa.binary_view())),
        pa.array([b"ab"], pa.binary(2)),
        pa.array([["a"]], pa.list_(pa.string(), 1)),
    ],
    ids=lambda column: str(column.type),
)
def test_a_batch_with_a_column_layout_that_cannot_be_counted_is_left_to_the_tasks(column: Any) -> None:
    assert spent_bytes([pa.RecordBatch.from_arrays([column], ["c"])]) == math.inf
