"""The offsets in a checkpoint are compared with those in Spark's memory. Their order and their text may differ."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from twopc.errors import FatalError
from twopc.files import MemoryFiles
from twopc.integration.spark.overwritten import require_not_overwritten

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_TWO_SOURCES = b'v2\n{}\norders:{"t":{"0":5,"1":3}}\nusers:{"u":{"0":1}}'


def compare(written: bytes, *planned: str) -> None:
    files = MemoryFiles()
    files.put_if_absent("offsets/7", written)
    require_not_overwritten(MagicMock(planned_offsets=in_spark(planned)), files, 7)


def in_spark(planned: Sequence[str]) -> MagicMock:
    """Spark's ``OffsetSeq``."""
    options = [
        MagicMock(**{"isDefined.return_value": text != "-", "get.return_value.json.return_value": text})
        for text in planned
    ]
    ends = [True] * len(options) + [False]
    sequence = MagicMock()
    sequence.__str__.return_value = f"[{', '.join(planned)}]"  # type: ignore[attr-defined]
    sequence.offsets.return_value.iterator.return_value = MagicMock(
        **{"hasNext.side_effect": ends, "next.side_effect": options}
    )
    return sequence


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (b'v1\n{}\n{"t":{"0":5}}\n-', ['{"t":{"0":5}}', "-"]),
        (_OF_TWO_SOURCES, ['{"u":{"0":1}}', '{"t":{"0":5,"1":3}}']),
        (_OF_TWO_SOURCES, ['{"t":{"1":3, "0":5}}', '{"u":{"0":1}}']),
    ],
    ids=["the same text", "another order of the sources", "another order of the keys"],
)
def test_equal_offsets_are_accepted(written: bytes, planned: Sequence[str]) -> None:
    compare(written, *planned)


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (_OF_TWO_SOURCES, ['{"t":{"0":5,"1":4}}', '{"u":{"0":1}}']),
        (b'v1\n{}\n{"t":{"0":5}}\n-', ['{"t":{"0":5}}', '{"u":{"0":1}}']),
        (b"v1\n{}\n1\n1\n2", ["1", "2", "2"]),
    ],
    ids=["a larger offset", "a source without an offset", "several equal offsets"],
)
def test_different_offsets_stop_the_query_and_the_error_shows_both(written: bytes, planned: Sequence[str]) -> None:
    with pytest.raises(FatalError, match="has overwritten the offsets") as raised:
        compare(written, *planned)
    assert f"planned the batch with [{', '.join(planned)}]" in str(raised.value)
