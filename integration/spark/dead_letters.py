"""``on_bad_record="dead_letter"``: a row that some sink can never take goes to a topic of its own, with the reason.

All of a row or none: what one sink cannot take, none is given. The letter is a participant of the same decision, so it
is readable exactly once, together with the rest of its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from twopc.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from integration.spark.views import View
    from twopc.sink import TwoPhaseCommitSink

#: The column that says why a row is bad; null where it is not.
CAUSE: Final = "__twopc_cause"


def screen(rows: pa.RecordBatch, sinks: Iterable[TwoPhaseCommitSink[Any]], views: Mapping[str, View]) -> pa.RecordBatch:
    """The batch with :data:`CAUSE` as its last column.

    Args:
        rows: without it.
        sinks: that have to take the rows; the one for bad rows may be among them.
        views: of each.
    """
    causes: list[str | None] = [None] * rows.num_rows
    for sink in sinks:
        if views[sink.name].of_bad_rows:
            continue
        for row, reason in bad_rows(views[sink.name].of(rows), sink.check).items():
            causes[row] = causes[row] or f"sink {sink.name!r}: {reason}"
    return rows.append_column(CAUSE, pa.array(causes, pa.string()))


def bad_rows(rows: pa.RecordBatch, check: Callable[[pa.RecordBatch], None]) -> dict[int, str]:
    """The rows that ``check`` refuses, and why: by halves, so that a batch without any costs one look."""
    found: dict[int, str] = {}

    def look(start: int, count: int) -> None:
        try:
            check(rows.slice(start, count))
        except BadRecordError as error:
            if count == 1:
                found[start] = str(error)
            else:
                look(start, count // 2)
                look(start + count // 2, count - count // 2)

    if rows.num_rows:
        look(0, rows.num_rows)
    return found


def letters(rows: pa.RecordBatch, causes: pa.Array[Any]) -> pa.RecordBatch:
    """The Kafka records about bad rows: the row as JSON, its cause in the header ``twopc.cause``.

    Bytes are text where they are UTF-8, else ``{"base64": …}``.
    """
    values = [msgspec.json.encode({name: _readable(value) for name, value in row.items()}) for row in rows.to_pylist()]
    headers = [[{"key": "twopc.cause", "value": str(cause).encode()}] for cause in causes.to_pylist()]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(headers, kind)], names=["value", "headers"]
    )


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": value}
    if isinstance(value, dict):
        return {name: _readable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(inner) for inner in value]
    return value
