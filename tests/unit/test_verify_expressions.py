"""Expressions that select a part of a record."""

from __future__ import annotations

import pytest
from confluent_kafka import Message

from twopc.integration.verify.expressions import ExpressionError, parse

JSON = b'{"order":{"id":"o-1","lines":[{"n":7},{"n":8}]},"n":-12,"none":null,"odd":1.5}'


def message(
    key: bytes | None = b"k", value: bytes | None = JSON, headers: list[tuple[str, str | bytes | None]] | None = None
) -> Message:
    return Message(topic="t", partition=0, offset=0, key=key, value=value, headers=headers)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("key", b"k"),
        ("value", JSON),
        ("header:trace-id", b"t1"),
        ("header:other", None),
        ("json:$.order.id", b'"o-1"'),
        ("json:$.order.lines[1].n", b"8"),
        ("json:$.order.lines[2].n", None),
        ("json:$.none", None),
        ("json:$.order.id[0]", None),  # a string is not a list
        ("json:$.order[0]", None),
        ("json:$.order.lines.n", None),
        ("json:$.n.deeper", None),
        ("json:$.absent", None),
    ],
)
def test_an_expression_selects_a_part_of_the_record_or_nothing(text: str, found: bytes | None) -> None:
    assert parse(text).bytes_of(message(headers=[("trace-id", b"t1"), ("trace-id", b"t2")])) == found


@pytest.mark.parametrize(
    "value",
    [
        *(None, b"", b"no JSON", b"[1", b"3"),
        b'{"n":"\xff"}',
        b'{"\xff":1,"n":1}',
        b'{"n":"\\ud800"}',
        b'{"n":' + b"[" * 100_000,
        b'{"n":1e999}',
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_without_the_path_yields_nothing(value: bytes | None) -> None:
    assert parse("json:$.n").bytes_of(message(value=value)) is None


def test_values_of_different_types_count_as_different() -> None:
    found = {parse("json:$.n").bytes_of(message(value=b'{"n":%s}' % one)) for one in (b"5", b'"5"', b"[5]", b"5.0")}
    assert len(found) == 4


def test_parts_are_combined_unambiguously() -> None:
    both = parse("key, value")
    assert both.bytes_of(message(b"a", b"bc")) != both.bytes_of(message(b"ab", b"c"))
    assert both.bytes_of(message(b"a", None)) is None


@pytest.mark.parametrize(
    ("text", "value", "number"),
    [
        ("json:$.n", JSON, -12),
        ("json:$.odd", JSON, None),
        ("json:$.n", b'{"n":"17"}', 17),  # a common workaround for readers without 64-bit numbers
        ("json:$.n", b'{"n":%d}' % (10**4000), None),
        ("json:$.n", b'{"n":true}', None),
        ("value", b"0042", 42),
        ("value", b"x", None),
        ("value", b"9223372036854775807", 2**63 - 1),
        ("value", b"9223372036854775808", None),
        ("value", None, None),
    ],
)
def test_a_number_is_parsed_as_a_64_bit_integer_or_none(text: str, value: bytes | None, number: int | None) -> None:
    assert parse(text).number_of(message(value=value)) == number


@pytest.mark.parametrize(
    "text", ["", "Key", "header:", "json:", "json:n", "json:$", "json:$.a[x]", "json:$..a", "key,", "__import__('os')"]
)
def test_the_error_for_an_invalid_expression_lists_the_valid_forms(text: str) -> None:
    with pytest.raises(ExpressionError, match="use key, value, header:NAME or json:PATH"):
        parse(text)
