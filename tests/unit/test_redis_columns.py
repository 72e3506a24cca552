"""Columns become words, by type or by a key template."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from twopc.errors import ConfigurationError
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
        (pa.array([True, False]), [b"true", b"false"]),
        (pa.array([Decimal("1.50")]), [b"1.50"]),
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


@pytest.mark.parametrize("template", ["", "{", "{}", "{a!r}", "{a:>3}", "twopc:{a}"])
def test_an_invalid_key_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigurationError, match="key "):
        Delete(template)
