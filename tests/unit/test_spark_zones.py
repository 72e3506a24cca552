"""Timestamps at any depth are in UTC once they are converted."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from twopc.integration.spark.zones import in_utc

AT = datetime(2020, 1, 1, tzinfo=timezone.utc)
KINDS: dict[str, tuple[Any, Any]] = {
    "timestamp": (lambda at: at, AT),
    "list": (pa.list_, [AT, None]),
    "large list": (pa.large_list, [AT]),
    "struct": (lambda at: pa.struct([pa.field("a", at, nullable=False), pa.field("b", pa.int64())]), {"a": AT, "b": 1}),
    "map": (lambda at: pa.map_(at, pa.list_(at)), [(AT, [AT])]),
    "deep": (lambda at: pa.list_(pa.struct([("m", pa.map_(pa.string(), at))])), [{"m": [("k", AT)]}]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zone", ["GMT+8", "ACT", "EST", "+08:00", "Etc/UTC"])
def test_timestamps_are_labeled_utc_and_keep_their_instants(kind: str, zone: str) -> None:
    of, value = KINDS[kind]
    expected = pa.array([value, None, value], of(pa.timestamp("us", "UTC"))).slice(1)
    given = expected.cast(of(pa.timestamp("us", zone)))
    rows = in_utc(pa.RecordBatch.from_arrays([given, pa.array([1, 2])], names=["at", "n"]))
    assert rows.schema.types == [expected.type, pa.int64()]
    assert rows.column(0).equals(expected)


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.list_(pa.timestamp("us")), pa.string()]
)
def test_a_value_without_a_zone_stays_unchanged(kind: Any) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([None], kind)], names=["at"])
    assert in_utc(rows) is rows
