"""Check that the last stable offset keeps moving, so that open transactions do not hold readers back for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twopc.testing.checkers.history import StableOffset, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence


def stalled(samples: Sequence[StableOffset], *, bound_s: float) -> list[Violation]:
    """Find each period longer than ``bound_s`` in which a last stable offset below the log's end did not advance."""
    stuck: dict[int, StableOffset] = {}
    longest: dict[tuple[int, int], tuple[float, StableOffset, StableOffset]] = {}
    for sample in sorted(samples, key=lambda sample: sample.at_s):
        began = stuck.get(sample.partition)
        if began is not None and (stood_s := sample.at_s - began.at_s) > bound_s:
            longest[sample.partition, began.stable] = stood_s, began, sample
        if sample.stable >= sample.end:
            stuck.pop(sample.partition, None)
        elif began is None or sample.stable > began.stable:
            stuck[sample.partition] = sample
    return [
        Violation(
            "stall",
            f"the last stable offset of partition {partition} stayed at {stable} for {stood_s:.1f} s",
            (began, ended),
        )
        for (partition, stable), (stood_s, began, ended) in sorted(longest.items())
    ]
