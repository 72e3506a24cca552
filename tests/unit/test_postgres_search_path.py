"""No schema on the search path can replace a function that the PostgreSQL sink's SQL calls."""

from __future__ import annotations

import re

import pytest

from tests.postgres_calls import calls, calls_in, strings

_RELATION = re.compile(r"\b(?:FROM|JOIN) (?:ONLY )?(pg_[a-z_]+)\b(?!\.)")


def test_every_function_is_called_with_its_schema() -> None:
    found = list(calls())
    assert {"to_regclass", "set_config", "starts_with", "num_nulls", "count"} <= {call.name for call in found}
    assert [call for call in found if call.schema != "pg_catalog"] == []


def test_every_system_catalog_is_read_with_its_schema() -> None:
    assert [(where, name) for where, text in strings() for name in _RELATION.findall(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT format('%I', a)", [("", "format")]),
        ("SELECT pg_catalog.format('%I', right(a, 1))", [("pg_catalog", "format"), ("", "right")]),
        ("FROM COUNT(*)", [("", "COUNT")]),
        ("WITH RECURSIVE tree(oid) AS (SELECT) FROM evil.unnest(a) WITH ORDINALITY k(number)", [("evil", "unnest")]),
        ("a = ANY(b) AND c IN (1) OR coalesce(d, e)", []),
    ],
)
def test_the_scan_tells_calls_from_other_brackets(text: str, found: list[tuple[str, str]]) -> None:
    assert list(calls_in(text)) == found
