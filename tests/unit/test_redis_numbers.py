"""A number that Redis would silently change is refused. Every other number becomes its text."""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from twopc.errors import BadRecordError
from twopc.sinks.redis.numbers import increments, scores

if TYPE_CHECKING:
    from collections.abc import Callable

    Encode = Callable[[pa.RecordBatch, str], list[bytes]]

_DOUBLE = pa.float64()
_LONG = pa.int64()


def _rows(*numbers: Any, kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([Decimal(one) if isinstance(one, str) else one for one in numbers], kind)})


@pytest.mark.parametrize(
    ("encode", "kind", "number", "word"),
    [
        (scores, _LONG, -(2**53), b"-9007199254740992"),
        (scores, _LONG, 2**53 + 2, b"9007199254740994"),
        (scores, pa.uint64(), 2**63, b"9223372036854775808"),
        (scores, _DOUBLE, 1e23, b"1e+23"),
        (scores, _DOUBLE, 5e-324, b"5e-324"),
        (scores, pa.float32(), 0.1, b"0.1"),
        (scores, pa.decimal128(38, 0), str(2**70), b"1180591620717411303424"),
        (scores, pa.decimal128(38, 18), "123456.7", b"123456.700000000000000000"),
        (scores, pa.decimal128(38, 38), "1E-38", b"1E-38"),
        (scores, pa.decimal256(76, 0), "0", b"0"),
        (increments, _LONG, 2**63 - 1, b"9223372036854775807"),
        (increments, pa.uint64(), 2**64 - 1, b"18446744073709551615"),
        (increments, _DOUBLE, 1e300, b"1e+300"),
        (increments, _DOUBLE, 0.1 * 0.2, b"0.020000000000000004"),
        (increments, _DOUBLE, 5e-324, b"5e-324"),
        (increments, _DOUBLE, 0.12345678901234568, b"0.12345678901234568"),
        (increments, pa.float32(), 0.1, b"0.1"),
        (increments, pa.decimal128(38, 18), "0.5", b"0.500000000000000000"),
        (increments, pa.decimal128(38, 38), "1E-17", b"0." + b"0" * 16 + b"1" + b"0" * 21),
        (increments, pa.decimal128(38, 10), "12345678.9012345678", b"12345678.9012345678"),
        (increments, pa.decimal128(38, 0), str(2**64), b"18446744073709551616"),
        (increments, pa.decimal128(38, 0), "1" + "0" * 37, b"1" + b"0" * 37),
        (increments, pa.decimal128(10, 7), "0", b"0E-7"),
    ],
)
def test_a_number_that_redis_keeps_becomes_its_text(
    encode: Encode, kind: pa.DataType, number: Any, word: bytes
) -> None:
    [found] = encode(_rows(number, kind=kind), "n")
    assert Decimal(found.decode()) == Decimal(word.decode())
    assert encode(pa.record_batch({"n": _rows(number, kind=kind).column(0).dictionary_encode()}), "n") == [found]


@pytest.mark.parametrize(
    ("encode", "kind", "number", "words"),
    [
        (scores, _LONG, 2**53 + 1, r"which would be 9007199254740992\.0\. .* double\(n\)"),
        (scores, _LONG, -(2**63) + 1, r"which would be -9\.2233720368547"),
        (scores, pa.decimal128(38, 0), "1" + "0" * 23, r"which would be 1e\+23"),
        (scores, pa.decimal128(38, 18), "12345678901234567.8", "which would be 1.2345678901234568e"),
        (scores, pa.decimal128(38, 37), "0." + "3" * 37, "which would be 0.333"),
        (increments, pa.decimal128(38, 18), "1E-18", r"only 17 digits after the decimal point\. .*round\(n, 17\)"),
        (increments, pa.decimal128(38, 18), "123.1234567890123456", r"only 18 digits.*double\(n\)"),
        (increments, pa.decimal128(38, 0), str(2**64 + 1), "only 18 digits"),
        (increments, pa.decimal256(76, 0), "9" * 76, "only 18 digits"),
    ],
)
def test_a_number_that_redis_would_change_is_refused_with_its_row_and_its_value(
    encode: Encode, kind: pa.DataType, number: Any, words: str
) -> None:
    rows = _rows(0, 1, number, kind=kind)
    text = rows.column(0).cast(pa.string())[2].as_py()
    with pytest.raises(
        BadRecordError, match=f"column 'n' contains .* in row 2 of an Arrow batch of 3 rows.*{words}"
    ) as found:
        encode(rows, "n")
    assert f"contains {text} in row" in str(found.value)


@pytest.mark.parametrize(
    "numbers",
    [
        [f"{1 / 3**power:.38f}" for power in range(1, 60)],
        ["12.345678901234567891"],
        ["-9.99999999999999999999"],
        ["99.99999999999999999999"],
        ["100000000.00000000001", "0.5"],
        ["123456789012345678.5"],
        ["18446744073709551617"],
        ["-98765432109876543210.12345"],
        ["9" * 30 + ".5"],
    ],
)
def test_a_rounded_column_is_accepted(numbers: list[str]) -> None:
    """The advice of the error must help."""
    with pytest.raises(BadRecordError) as found:
        increments(_rows(*numbers, kind=pa.decimal256(76, 38)), "n")
    advised = re.search(r"round\(n, (-?\d+)\)", str(found.value))
    assert advised
    scale = int(advised[1])
    rounded = [Context(prec=76).quantize(Decimal(one), Decimal((0, (1,), -scale))) for one in numbers]
    plain = [f"{number:f}" for number in rounded]  # PyArrow accepts no positive exponent here
    words = increments(_rows(*plain, kind=pa.decimal256(76, max(scale, 0))), "n")
    assert [Decimal(word.decode()) for word in words] == rounded


def test_the_error_also_gives_the_scale_for_greater_numbers_than_the_one_that_it_names() -> None:
    """Otherwise, the next error would only name another scale."""
    kind = pa.decimal128(38, 18)
    with pytest.raises(BadRecordError, match=r"round\(n, 17\)\. If other numbers have more .* point, pass 18 minus"):
        increments(_rows("1E-18", "12.345678901234567891", kind=kind), "n")
    rounded = _rows("0", "12.3456789012345679", kind=kind)  # by 18 minus two digits
    assert increments(rounded, "n") == [b"0E-18", b"12.345678901234567900"]
