"""How many rows the sink has written, over all looks: a later look may find a batch truncated."""

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

    #: A transaction's rows are counted together, so by the topics that it wrote to: mostly one.
    Rows = Counter[frozenset[str]]


@dataclass
class Tally:
    """Rows by batch: decided, and proven visible."""

    _decided: dict[BatchId, Rows] = field(default_factory=dict)
    _proven: dict[BatchId, Rows] = field(default_factory=dict)
    _incomplete: str | None = None

    def note(self, before: History, after: History, sink: KafkaSink, visible: Collection[str]) -> None:
        """Remember a look: what was decided before the output's ends were asked for, and after."""
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
        """Why some batch of the sink has never been noted; None where all have been."""
        if history.elsewhere:
            return f"another ledger has decided before ({', '.join(sorted(set(history.elsewhere.values())))})"
        oldest = next(iter(history.batches), None)
        if history.is_complete or oldest in self._decided:
            return None
        if oldest is not None and oldest._replace(batch=oldest.batch - 1) in self._decided:
            return None
        return "the ledger keeps the last decisions only"

    def rows_of(self, batches: Collection[BatchId]) -> int:
        """Decided rows of some batches."""
        return sum(self._decided[key].total() for key in batches)

    def comparison(self, sole_writer: bool) -> Comparison:  # noqa: FBT001 - a field of the result
        """What the output is to be compared with."""
        return Comparison(
            proven=_sum(self._proven.values()),
            decided=_sum(self._decided.values()),
            incomplete=self._incomplete,
            sole_writer=sole_writer,
        )


def _sum(counts: Iterable[Rows]) -> Rows:
    # Not sum(): it would make a new counter for each batch.
    total = Counter[frozenset[str]]()
    for rows in counts:
        total.update(rows)
    return total
