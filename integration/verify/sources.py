"""Check the batches' source offsets. If the source is Kafka, count each batch's source records."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from twopc.counted import counted
from twopc.integration.verify.findings import Finding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twopc.integration.verify.history import Batch, BatchId


def records_between(prior: Sequence[str], offsets: Sequence[str]) -> int | None:
    """Count a batch's source records. Return None if a source is not Kafka, or if a partition's start offset is unknown."""
    before, after = _partitions(prior), _partitions(offsets)
    if before is None or after is None or not before.keys() >= after.keys():
        return None
    return sum(end - before[where] for where, end in after.items())


def kafka_ends(text: str | bytes) -> dict[tuple[str, int], int] | None:
    """Parse a source's offset, such as ``{"topic":{"0":5}}``. Return None if the source is not Kafka."""
    try:
        topics = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except (msgspec.DecodeError, UnicodeError):
        return None
    return {(topic, number): offset for topic, partitions in topics.items() for number, offset in partitions.items()}


def check_sources(
    batches: Mapping[BatchId, Batch], initial: Mapping[str, Sequence[str]], *, one_to_one: bool
) -> Iterator[Finding]:
    """Check that offsets never decrease from one batch to the next.

    With ``one_to_one``, also check that each batch contains one row for each source record.

    Args:
        batches: the retained batches, the oldest first.
        initial: the first source offsets by query id, if known.
        one_to_one: whether each source record becomes one row.
    """
    uncounted = []
    for key, batch in batches.items():
        prior = initial.get(key.query_id) if batch.prior is None and key.batch == 0 else batch.prior
        offsets = batch.decision.offsets
        if prior is not None and (back := _first_back(prior, offsets)):
            yield Finding(Kind.OFFSETS_RAN_BACK, f"batch {key.batch}", f"{back}, so records were processed again")
        if not one_to_one:
            continue
        expected = None if prior is None else records_between(prior, offsets)
        rows = sum(task.rows for task in batch.decision.tasks)
        if expected is None:
            uncounted.append(key.batch)
        elif expected != rows:
            text = (
                f"{counted(rows, 'row was', 'rows were')} decided for {counted(expected, 'source offset')}. The query "
                "removed or added rows, or the source has offsets without records (transactions, compaction, "
                "retention)"
            )
            yield Finding(Kind.RANGE_DIFFERS, f"batch {key.batch}", text)
    if uncounted:
        text = "rows cannot be compared with source offsets, because the batch's start is unknown or the source is not Kafka"
        yield Finding(Kind.NOT_COMPARED, f"batches {ranges(uncounted)}", text)


def ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges, such as ``3-5, 9``."""
    cuts = [0, *(i for i, (a, b) in enumerate(pairwise(numbers), start=1) if b != a + 1), len(numbers)]
    pieces = [(numbers[low], numbers[high - 1]) for low, high in pairwise(cuts)]
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in pieces)


def _first_back(prior: Sequence[str], offsets: Sequence[str]) -> str | None:
    before, after = _partitions(prior) or {}, _partitions(offsets) or {}
    for where, end in after.items():
        if end < before.get(where, end):
            return f"the offset of {where[0]}[{where[1]}] went back from {before[where]:,} to {end:,}"
    return None


def _partitions(offsets: Sequence[str]) -> dict[tuple[str, int], int] | None:
    """Return the offset for each topic and partition of all sources, or None if a source is not Kafka."""
    found = dict[tuple[str, int], int]()
    for source, text in enumerate(offsets):
        # If the query has named the source, the name precedes its offset.
        ends = kafka_ends(text if text.startswith("{") else text.partition(":")[2])
        if ends is None:
            return None
        # Two sources may read the same topic.
        suffix = f" (source {source})" if source else ""
        found |= {(f"{topic}{suffix}", partition): offset for (topic, partition), offset in ends.items()}
    return found
