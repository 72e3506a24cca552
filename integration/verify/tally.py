"""How many rows the sink has written, over all looks: a later look may find a batch truncated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from integration.verify.output import Comparison

if TYPE_CHECKING:
    from collections.abc import Collection

    from integration.verify.history import BatchId, History
    from sinks.kafka import KafkaSink


@dataclass
class Tally:
    """Rows by batch: decided, and proven visible."""

    _decided: dict[BatchId, int] = field(default_factory=dict)
    _proven: dict[BatchId, int] = field(default_factory=dict)
    _is_complete: bool | None = None

    def note(self, before: History, after: History, sink: KafkaSink, visible: Collection[str]) -> None:
        """Remember a look: what was decided before the output's ends were asked for, and after."""
        if self._is_complete is None:
            self._is_complete = before.is_complete
        for history in (before, after):
            for key, batch in history.batches.items():
                handles = [sink.decode_handle(encoded) for _, encoded in batch.handles(sink.name)]
                self._decided[key] = sum(handle.rows for handle in handles)
                if history is before:
                    self._proven[key] = sum(handle.rows for handle in handles if handle.uuid in visible)

    def rows_of(self, batches: Collection[BatchId]) -> int:
        """Decided rows of some batches."""
        return sum(self._decided[key] for key in batches)

    def comparison(self, topics: frozenset[str], sole_writer: bool) -> Comparison:  # noqa: FBT001 - a field of the result
        """What the output is to be compared with."""
        return Comparison(
            proven=sum(self._proven.values()),
            decided=sum(self._decided.values()),
            topics=topics,
            is_complete=bool(self._is_complete),
            sole_writer=sole_writer,
        )
