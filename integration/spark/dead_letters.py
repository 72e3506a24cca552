"""``on_bad_record="dead_letter"``: what a record about a bad row looks like."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def letters(rows: pa.RecordBatch, causes: pa.Array[Any]) -> pa.RecordBatch:
    """One record for each bad row: ``value`` is the row as JSON, the header ``twopc.cause`` says why it is bad.

    Bytes become text where they are UTF-8, else ``{"base64": …}``.
    """
    values = [msgspec.json.encode({name: _readable(value) for name, value in row.items()}) for row in rows.to_pylist()]
    headers = [[{"key": "twopc.cause", "value": str(cause).encode()}] for cause in causes.to_pylist()]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(headers, _HEADERS)], names=["value", "headers"]
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
