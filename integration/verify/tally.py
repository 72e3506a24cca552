"""Count the rows of a sink over all checks: by a later check, a batch may be truncated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from integration.verify.decided import topics_of
from integration.verify.output import Comparison

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from integration.verify.history import BatchId, History
    from sinks.kafka import KafkaSink

    #: A decision has the rows of a transaction, not of a topic: count them by the set of topics it wrote to, usually one.
    Rows = Counter[frozenset[str]]


@dataclass
class Tally:
    """Rows per batch: decided, and proven visible."""

    _decided: dict[BatchId, Rows] = field(default_factory=dict)
    _proven: dict[BatchId, Rows] = field(default_factory=dict)
    _incomplete: str | None = None

    def record(self, before: History, after: History, sink: KafkaSink, visible: Collection[str]) -> None:
        """Record a check: what was decided before the ends of the output were read, and after."""
        for history in (before, after):
            self._incomplete = self._incomplete or self._why_incomplete(history)
            for key, batch in history.batches.items():
                decided, proven = Counter[frozenset[str]](), Counter[frozenset[str]]()
                for _, encoded in batch.handles(sink.name):
                    handle = sink.decode_handle(encoded)
                    topics = topics_of(handle, sink)
                    decided[topics] += handle.rows
                    proven[topics] += handle.rows if handle.uuid in visible else 0
                self._decided[key] = decided
                if history is before:
                    self._proven[key] = proven

    def _why_incomplete(self, history: History) -> str | None:
        """Why a batch of the sink may never have been recorded; None if all were."""
        if history.elsewhere:
            return f"earlier batches were decided in {', '.join(sorted(set(history.elsewhere.values())))}"
        oldest = next(iter(history.batches), None)
        if history.is_complete or oldest in self._decided:
            return None
        if oldest is not None and oldest._replace(batch=oldest.batch - 1) in self._decided:
            return None
        return "older decisions were truncated"

    def rows_of(self, batches: Collection[BatchId]) -> int:
        """Decided rows of these batches."""
        return sum(self._decided[key].total() for key in batches)

    def comparison(self, sole_writer: bool) -> Comparison:  # noqa: FBT001 - a field of the result
        """What to compare the output with."""
        return Comparison(
            proven=_sum(self._proven.values()),
            decided=_sum(self._decided.values()),
            incomplete=self._incomplete,
            sole_writer=sole_writer,
        )


def _sum(counts: Iterable[Rows]) -> Rows:
    # Not sum(): it would create a counter for each batch.
    total = Counter[frozenset[str]]()
    for rows in counts:
        total.update(rows)
    return total
