"""Give each sink its rows and columns.

One Arrow batch contains the columns for all sinks, and a sink's view of the batch copies no data. With ``dead_letter``, a row
that one sink can never take reaches no other sink. The dead-letter sink takes part in the same decision, so a dead letter is
readable exactly once, together with the rest of its batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from twopc.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from twopc.sink import TwoPhaseCommitSink

#: The column with each row's hash (int64). The JVM computes the hashes; a task only adds them up.
CHECKSUM: Final = "__twopc_checksum"
#: The column that says why a row is bad; null for a good row. The column is present only if bad rows become dead
#: letters.
CAUSE: Final = "__twopc_cause"
_KEY: Final = b"twopc.views"
#: The maximum size of a dead letter, below the default limits of clients, brokers and topics, so that no letter stops the query.
#: A sink with a lower limit receives smaller letters.
LETTER_MAX_BYTES: Final = 900_000
#: How much of a long text (in characters) or of long binary data (in bytes) is kept if the letter would exceed the limit. Each
#: length is tried in turn.
_CUTS: Final = (10_000, 1_000, 100)
#: The cause can quote the row. So the cause's size is limited to a letter's maximum size divided by this number.
_CAUSE_SHARE: Final = 4
_CAUSE_MAX_BYTES: Final = 10_000
_CAUSE_KEY: Final = "twopc.cause"
#: The floats that JSON does not support, by Python's names. The values are the names that Spark and other JSON writers
#: use.
_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a batch that one sink sees. A view is stored with staged rows, so its fields are a storage format.

    Attributes:
        columns: for each column, its name in the sink and its index in the batch.
        of_bad_rows: whether the sink receives dead letters, which are records about rows that other sinks cannot accept.
    """

    columns: tuple[tuple[str, int], ...]
    of_bad_rows: bool = False

    def of(
        self, rows: pa.RecordBatch, letter_max_bytes: Callable[[], int] = lambda: LETTER_MAX_BYTES
    ) -> pa.RecordBatch:
        """Select the sink's rows and columns from a batch.

        Args:
            rows: the batch.
            letter_max_bytes: see :meth:`SinkWriter.letter_max_bytes`. Called only for dead letters.
        """
        if CAUSE not in rows.schema.names:
            return self._named(rows)
        is_good = rows.column(CAUSE).is_null()
        if not self.of_bad_rows:
            return self._named(rows if pc.all(is_good).as_py() else rows.filter(is_good))
        bad = rows.filter(pc.invert(is_good))
        most_bytes = min(LETTER_MAX_BYTES, letter_max_bytes()) if bad.num_rows else LETTER_MAX_BYTES
        return _letters(self._named(bad), bad.column(CAUSE), max(0, most_bytes))

    def count(self, rows: pa.RecordBatch) -> int:
        """Count the rows of a batch that the sink must receive."""
        if CAUSE not in rows.schema.names:
            return rows.num_rows
        good = rows.column(CAUSE).null_count
        return rows.num_rows - good if self.of_bad_rows else good

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        # A sink that only counts rows uses no columns, and a batch made from no arrays would have no rows.
        if not self.columns:
            return rows.select([])
        # Every field is nullable, even if Spark knows that the column has no nulls. So a sink always receives the same schema.
        return pa.RecordBatch.from_arrays(
            [rows.column(index) for _, index in self.columns], names=[name for name, _ in self.columns]
        )


def with_views(schema: pa.Schema, views: Mapping[str, View]) -> pa.Schema:
    """Add the views to the schema's metadata, so that staged rows reach each sink even after the query's code has changed."""
    return schema.with_metadata({_KEY: msgspec.json.encode(views)})


def views_in(schema: pa.Schema) -> dict[str, View]:
    """Read the views that :func:`with_views` stored."""
    return msgspec.json.decode((schema.metadata or {})[_KEY], type=dict[str, View])


def screen(rows: pa.RecordBatch, sinks: Iterable[TwoPhaseCommitSink[Any]], views: Mapping[str, View]) -> pa.RecordBatch:
    """Append the column :data:`CAUSE`.

    Args:
        rows: the batch, without the column :data:`CAUSE`.
        sinks: all sinks. The dead-letter sink does not check rows.
        views: maps a sink's name to the sink's view.
    """
    causes: list[str | None] = [None] * rows.num_rows
    for sink in sinks:
        view = views[sink.name]
        if view.of_bad_rows:
            continue
        for row, reason in bad_rows(view.of(rows), sink.check_rows).items():
            causes[row] = causes[row] or f"sink {sink.name!r}: {reason}"
    return rows.append_column(CAUSE, pa.array(causes, pa.string()))


def bad_rows(rows: pa.RecordBatch, check: Callable[[pa.RecordBatch], None]) -> dict[int, str]:
    """By bisection, find the rows that ``check`` rejects, and why. A batch without bad rows takes only one check."""
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


def _letters(rows: pa.RecordBatch, causes: pa.Array[Any], most_bytes: int) -> pa.RecordBatch:
    """Build one record for each bad row, with at most ``most_bytes`` in its value and its header.

    ``value`` is the row as JSON, and the header ``twopc.cause`` says why the row is bad. Bytes become text if they are UTF-8,
    and otherwise ``{"base64": …}``. The same applies to text, because Spark's strings may contain
    any bytes. A date or a time outside Python's years 1 to 9999 becomes ``{"days": …}`` or ``{"microseconds": …}``, counted
    from 1970-01-01. A float that is not finite becomes ``{"float": "NaN"}``, because JSON has no such number. If the record
    would be too large, long values are truncated.
    """
    try:
        found = rows.to_pylist()
    except (UnicodeDecodeError, OverflowError):
        columns = {name: list(map(_python_of, rows.column(name))) for name in rows.schema.names}
        found = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    texts = [_cause(str(cause), min(_CAUSE_MAX_BYTES, most_bytes // _CAUSE_SHARE)) for cause in causes.to_pylist()]
    values = [_letter(row, most_bytes - len(_CAUSE_KEY) - len(text)) for row, text in zip(found, texts, strict=True)]
    headers = [[{"key": _CAUSE_KEY, "value": text}] for text in texts]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(headers, _HEADERS)], names=["value", "headers"]
    )


def _cause(cause: str, most_bytes: int) -> bytes:
    """Encode the cause. If the cause is longer than ``most_bytes``, truncate it to this size, and append an ellipsis."""
    whole = cause.encode()
    return whole if len(whole) <= most_bytes else whole[:most_bytes].decode(errors="ignore").encode() + "…".encode()


def _letter(row: dict[str, Any], most_bytes: int) -> bytes:
    """Encode the row as JSON in the first form that fits, or else in the shortest. The row may be bad because it is too large."""
    letter = b""
    for letter in _forms(row):
        if len(letter) <= most_bytes:
            break
    return letter


def _forms(row: dict[str, Any]) -> Iterator[bytes]:
    """Yield ever shorter forms: the whole row, the row with truncated values, and the beginning of the row's JSON text."""
    whole = msgspec.json.encode(_readable(row))
    yield whole
    for part in (row, {"row": whole}):
        for most in _CUTS:
            yield msgspec.json.encode(_readable(part, most))


def _readable(value: Any, most: int | None = None) -> Any:
    """Convert a value to a value that JSON can represent.

    If ``most`` is given, truncate longer text and bytes to this length, and add the original length.
    """
    if isinstance(value, bytes):
        return _readable_bytes(value, most)
    if isinstance(value, str) and most is not None and len(value) > most:
        return {"text": value[:most], "cut": True, "characters": len(value)}
    if isinstance(value, dict):
        return {name: _readable(inner, most) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(inner, most) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": _NOT_FINITE[str(value)]}
    return value


def _readable_bytes(value: bytes, most: int | None) -> Any:
    try:
        return _readable(value.decode(), most)
    except UnicodeDecodeError:
        is_whole = most is None or len(value) <= most
        return {"base64": value} if is_whole else {"base64": value[:most], "cut": True, "bytes": len(value)}


def _python_of(scalar: Any) -> Any:
    """Convert an Arrow value to a Python value. If Arrow cannot convert the value, convert its parts one by one."""
    try:
        return scalar.as_py()
    except (UnicodeDecodeError, OverflowError):
        kind = scalar.type
    if isinstance(kind, pa.StructType):
        return {field.name: _python_of(scalar[index]) for index, field in enumerate(kind)}
    if isinstance(kind, (pa.ListType, pa.MapType)):
        parts = list(map(_python_of, scalar.values))
        return [tuple(part.values()) for part in parts] if isinstance(kind, pa.MapType) else parts
    if pa.types.is_date(kind):
        return {"days": scalar.value}
    if isinstance(kind, pa.TimestampType):
        return {"microseconds": scalar.value}
    return scalar.as_buffer().to_pybytes()
