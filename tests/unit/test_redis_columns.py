"""Columns become words, by type or by a key template."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from twopc.errors import BadRecordError, ConfigurationError
from twopc.sinks.columns import texts
from twopc.sinks.redis.mappings import Delete, keys


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["a", "ü"]), [b"a", "ü".encode()]),
        (pa.array(["a"], pa.large_string()), [b"a"]),
        (pa.array([b"\x00\xff"]), [b"\x00\xff"]),
        (pa.array([b"\xff"], pa.large_binary()), [b"\xff"]),
        (pa.array([-1, 2**62]), [b"-1", b"4611686018427387904"]),
        (pa.array([1.5, 1e300]), [b"1.5", b"1e+300"]),
        (pa.array([float("nan"), float("-inf")]), [b"nan", b"-inf"]),
        (pa.array([True, False]), [b"true", b"false"]),
        (pa.array([Decimal("1.50")]), [b"1.50"]),
        # Spark's cast to string gives these texts without ANSI mode, and 0.0000001 and 0.0000000 in ANSI mode.
        (pa.array([Decimal("1E-7"), Decimal(0)], pa.decimal128(10, 7)), [b"1E-7", b"0E-7"]),
        (pa.array([Decimal("0.000001"), Decimal(0)], pa.decimal128(10, 6)), [b"0.000001", b"0.000000"]),
        (pa.array([date(2026, 1, 2)]), [b"2026-01-02"]),
        (pa.array([datetime(2026, 1, 2, 3, tzinfo=timezone.utc)]), [b"2026-01-02 03:00:00.000000Z"]),
        (pa.array(["a", "a"]).dictionary_encode(), [b"a", b"a"]),
    ],
)
def test_every_scalar_type_has_a_text_form(column: Any, words: list[bytes]) -> None:
    assert texts(pa.record_batch({"c": column}), "c") == words


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("total:{id}", [b"total:1", b"total:2"]),
        ("{id}", [b"1", b"2"]),
        ("{shop}:{id}:x", [b"a:1:x", b"b:2:x"]),
        ("{{{shop}}}:{id}", [b"{a}:1", b"{b}:2"]),
        ("events", [b"events", b"events"]),
        ("{{orders}}:events", [b"{orders}:events"] * 2),
        ("{{}}", [b"{}", b"{}"]),
    ],
)
def test_a_key_template_combines_text_and_columns(template: str, expected: list[bytes]) -> None:
    rows = pa.record_batch({"id": pa.array([1, 2]), "shop": pa.array(["a", "b"])})
    assert keys(rows, template) == expected


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (pa.timestamp("us", "UTC"), 1_700_000_000_000 * 10**6, "1700000000000000000 microseconds"),
        (pa.timestamp("us"), 1_700_000_000_000 * 10**6, "1700000000000000000 microseconds"),
        (pa.timestamp("s", "UTC"), 2_069_880_652_800, "2069880652800 seconds"),  # Arrow would show the year 2024
        (pa.timestamp("us"), 253_402_300_800 * 10**6, "253402300800000000 microseconds"),
        (pa.date32(), 19_675_613, "19675613 days"),
        (pa.date32(), 2_932_897, "2932897 days"),
        (pa.date32(), -719_163, "-719163 days"),
        (pa.date64(), 2_932_897 * 86_400_000, "2932897 days"),
    ],
)
def test_a_date_outside_the_years_1_to_9999_is_neither_a_value_nor_a_key(kind: Any, value: int, shown: str) -> None:
    """Arrow's text has the same year again after 65,536 years, so two rows would have the same key."""
    rows = pa.record_batch({"at": pa.array([0, value], kind)})
    why = f"'at' contains a date outside the years 1 to 9999 in row 1 of an Arrow batch of 2 rows: {shown} since 1970-01-01"
    with pytest.raises(BadRecordError, match=why):
        texts(rows, "at")
    with pytest.raises(BadRecordError, match=why):
        keys(rows, "k:{at}")
    texts(rows.slice(0, 1), "at")


@pytest.mark.parametrize(
    ("kind", "edges", "words"),
    [
        (pa.date32(), [-719_162, 2_932_896], [b"0001-01-01", b"9999-12-31"]),
        (
            pa.timestamp("us", "UTC"),
            [-719_162 * 86_400 * 10**6, 253_402_300_800 * 10**6 - 1],
            [b"0001-01-01 00:00:00.000000Z", b"9999-12-31 23:59:59.999999Z"],
        ),
        (pa.timestamp("ns"), [0], [b"1970-01-01 00:00:00.000000000"]),
    ],
)
def test_the_first_and_last_dates_of_the_years_1_to_9999_are_written(
    kind: Any, edges: list[int], words: list[bytes]
) -> None:
    assert texts(pa.record_batch({"at": pa.array(edges, kind)}), "at") == words


@pytest.mark.parametrize("template", ["", "{", "{}", "{a!r}", "{a:>3}", "twopc:{a}"])
def test_an_invalid_key_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigurationError, match="key "):
        Delete(template)
