"""``on_bad_record="dead_letter"``: finding the rows that some sink can never take.

No sink is given a row that one of them cannot take. The sink for dead letters takes part in the same decision, so a
letter is readable exactly once, together with the rest of its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from integration.spark.views import CAUSE
from twopc.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from integration.spark.views import View
    from twopc.sink import TwoPhaseCommitSink


def screen(rows: pa.RecordBatch, sinks: Iterable[TwoPhaseCommitSink[Any]], views: Mapping[str, View]) -> pa.RecordBatch:
    """Append the column :data:`CAUSE`.

    Args:
        rows: the batch without that column.
        sinks: all sinks; the one for dead letters is not asked.
        views: by sink name.
    """
    causes: list[str | None] = [None] * rows.num_rows
    for sink in sinks:
        view = views[sink.name]
        if view.of_bad_rows:
            continue
        for row, reason in bad_rows(view.of(rows), sink.check).items():
            causes[row] = causes[row] or f"sink {sink.name!r}: {reason}"
    return rows.append_column(CAUSE, pa.array(causes, pa.string()))


def bad_rows(rows: pa.RecordBatch, check: Callable[[pa.RecordBatch], None]) -> dict[int, str]:
    """The rows that ``check`` rejects, with its reason. Bisects, so a batch without bad rows costs one check."""
    found: dict[int, str] = {}

    def bisect(start: int, count: int) -> None:
        try:
            check(rows.slice(start, count))
        except BadRecordError as error:
            if count == 1:
                found[start] = str(error)
            else:
                bisect(start, count // 2)
                bisect(start + count // 2, count - count // 2)

    if rows.num_rows:
        bisect(0, rows.num_rows)
    return found
