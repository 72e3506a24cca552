"""If a topic has more records than decided rows, find the records that no decided transaction wrote."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from twopc.integration.batch_reader import read_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from twopc.sinks.kafka import KafkaSink

    #: Pairs of a producer id and an epoch. Each decided transaction has its own pair (rule 5).
    Producers = Collection[tuple[int, int]]

_NAMED: Final = 5


def describe_strays(sink: KafkaSink, ends: Mapping[str, Mapping[int, int]], decided: Producers) -> str:
    """Describe the records that no decided transaction wrote.

    Args:
        sink: describes the connection.
        ends: for each topic, the offset at which readers stopped in each partition.
        decided: the producers of all decided transactions.

    Raises:
        TwoPhaseCommitError: a topic cannot be read.
    """
    count, places = 0, list[str]()
    for topic, stable in ends.items():
        for partition, batch in _strays(sink, topic, stable, decided):
            count += batch.records_count
            for record in islice(batch, _NAMED - len(places)):
                places.append(f"{topic}[{partition}]@{record.offset} (producer id {batch.producer_id})")
    if not count:
        return "decided transactions wrote all these records"
    return (
        f"no decided transaction wrote {count:,} of these records: "
        f"{'; '.join(places)}{'; …' if count > len(places) else ''}"
    )


def _strays(sink: KafkaSink, topic: str, ends: Mapping[int, int], decided: Producers) -> Iterator[tuple[int, Any]]:
    undecided = defaultdict[tuple[int, int], list[Any]](
        list
    )  # by partition and producer id: transactions that have not ended yet
    for partition, batch in read_batches(sink.committing_config(), topic):
        if batch.is_control_batch:
            found = undecided.pop((partition, batch.producer_id), ())
            if next(iter(batch)).commit:
                yield from ((partition, one) for one in found)
        elif batch.base_offset < ends.get(partition, 0) and (batch.producer_id, batch.producer_epoch) not in decided:
            if batch.is_transactional:
                undecided[partition, batch.producer_id].append(batch)
            else:
                yield partition, batch
