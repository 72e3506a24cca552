"""Make nulls that a Parquet file accepts.

Parquet rejects a null in a struct's required field even if the struct itself is null. Such a field is therefore filled
with a value that no reader sees.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

#: The number of bytes in the largest number, or in the two offsets of a string.
_LARGEST: Final = 16


def nulls(length: int, kind: Any) -> Any:
    """Make nulls that can be written: a null struct contains a value in each required field."""
    if not pa.types.is_struct(kind):
        return pa.nulls(length, kind)
    fields = [kind.field(number) for number in range(kind.num_fields)]
    arrays = [filled(nulls(length, field.type), field) for field in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.repeat(pa.scalar(value=True), length))


def filled(values: Any, field: pa.Field[Any]) -> Any:
    """Replace the nulls in a struct's required field. The values have been checked, so these nulls are all in null structs."""
    if field.nullable or not values.null_count:
        return values
    numbers = pc.if_else(values.is_valid(), pa.array(range(len(values)), pa.int64()), len(values))
    return pa.concat_arrays([values, _zero(field.type)]).take(numbers)


def _zero(kind: Any) -> Any:
    """Return one value: a zero; an empty text, list or map; or a struct.

    A struct contains such values in its required fields, and nulls in the others.
    """
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, _zero(kind.storage_type))
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays([filled(nulls(1, field.type), field) for field in fields], fields=fields)
    if pa.types.is_nested(kind):
        return pa.array([[]], kind)
    # A string consists of its offsets, which are all zero here, and its bytes.
    zeros = pa.py_buffer(bytes(kind.byte_width if pa.types.is_fixed_size_binary(kind) else _LARGEST))
    return pa.Array.from_buffers(kind, 1, [None, *[zeros] * (kind.num_buffers - 1)])
