"""Convert column values to the table's type, and find values that this type can never store.

The conversion also covers the values inside structs, lists and maps. No information is lost: integers and floats become wider,
and decimals gain digits. Each table format has its own types. Iceberg has large strings and lists, UUIDs and fixed bytes. Delta
has 16-bit integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from twopc.sinks.lake.nulls import filled, nulls
from twopc.sinks.years import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    #: Arrow's type stubs cannot describe values whose type is known only at run time.
    Array = Any

_UUID: Final = r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"
_UUID_BYTES: Final = 16
#: For each target type, the other Arrow types whose values fit it.
_WIDENED: Final = {
    pa.int16(): (pa.int8(), pa.uint8()),
    pa.int32(): (pa.int8(), pa.int16(), pa.uint8(), pa.uint16()),
    pa.int64(): (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()),
    pa.float64(): (pa.float32(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
    pa.large_string(): (pa.string(),),
    pa.large_binary(): (pa.binary(),),
}
#: An error message shows this many characters of a value.
_SHOWN: Final = 60


class MisfitError(Exception):
    """A part of a column has a type that the table's column does not accept.

    Attributes:
        path: the part's path, such as ``address.zip``.
        found: the part's type.
        wanted: the table's type; empty if this part is missing from the table.
    """

    def __init__(self, path: str, found: str, wanted: str) -> None:
        super().__init__(path)
        self.path, self.found, self.wanted = path, found, wanted


def check_type(source: Any, target: Any, path: str) -> None:
    """Check that values of one type can be converted to another type.

    Raises:
        MisfitError: the conversion is not possible.
    """
    source = _plain(source)
    if pa.types.is_null(source):
        return
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        for index, field in _pair(source, target, path):
            if index is None and not field.nullable:
                raise MisfitError(f"{path}.{field.name}", "missing", f"{field.type}, and required")
            if index is not None:
                check_type(source.field(index).type, field.type, f"{path}.{field.name}")
    elif _is_list(target) and _is_list(source):
        check_type(source.value_type, target.value_type, f"{path}.element")
    elif pa.types.is_map(target) and pa.types.is_map(source):
        check_type(source.key_type, target.key_type, f"{path}.key")
        check_type(source.item_type, target.item_type, f"{path}.value")
    elif not _is_taken(source, target):
        raise MisfitError(path, str(source), str(target))


def convert(values: Array, target: Any, stored: Any) -> Array:
    """Convert values whose type and content have been checked.

    Args:
        values: the values.
        target: the type of the table's column.
        stored: the same type, with the names that struct fields have in a data file.
    """
    values = _decoded(values)
    if pa.types.is_null(values.type):
        return nulls(len(values), stored)
    if pa.types.is_struct(target):
        return _struct(values, target, stored)
    make: Any
    if pa.types.is_map(target):
        offsets, dense, mask = _dense(values)
        keys = convert(dense.keys, target.key_type, stored.key_type)
        items = convert(dense.items, target.item_type, stored.item_type)
        make = pa.MapArray.from_arrays
        return make(offsets.cast(pa.int32()), keys, items, type=stored, mask=mask)
    if _is_list(target):
        offsets, dense, mask = _dense(values)
        inner = convert(dense.flatten(), target.value_type, stored.value_type)
        is_large = pa.types.is_large_list(stored)
        make = pa.LargeListArray.from_arrays if is_large else pa.ListArray.from_arrays
        return make(offsets if is_large else offsets.cast(pa.int32()), inner, type=stored, mask=mask)
    if isinstance(target, pa.UuidType):
        return pa.ExtensionArray.from_storage(target, _uuid_bytes(values))
    return values if values.type == stored else values.cast(stored)


def problems(values: Array, field: pa.Field[Any], path: str) -> Iterator[tuple[int, str]]:
    """Find values that the table's column can never store. Yield each value's row number and the reason."""
    values = _decoded(values)
    if values.null_count and not field.nullable:
        reason = f"column {path!r} is null, but the table requires a value: replace the null (coalesce)"
        yield from ((row, reason) for row in true_rows(values.is_null()))
    if values.null_count == len(values):
        return
    target: Any = field.type
    if pa.types.is_nested(target):
        rows, dense = _valid(values)
        yield from ((rows[at], reason) for at, reason in _inner_problems(dense, target, path))
    elif _is_text(target):
        for row in _not_utf8(values):
            yield row, f"column {path!r} contains bytes that are not UTF-8"
    else:
        mask, what = _unfit(values, target)
        if mask is not None:
            for row in true_rows(mask):
                yield row, f"column {path!r} contains {what}: {_show(values, row)}"


def true_rows(mask: Any) -> list[int]:
    """Return the row numbers where a mask is true."""
    return [row for row, is_true in enumerate(mask.to_pylist()) if is_true]


def _pair(source: Any, target: Any, path: str) -> list[tuple[int | None, pa.Field[Any]]]:
    """For each field in a target struct, find the index of the source field with that name. Prefer a name with the same case.

    Raises:
        MisfitError: the source has a field that the target does not have.
    """
    names = [source.field(index).name for index in range(source.num_fields)]
    lower = [name.lower() for name in names]
    found: list[tuple[int | None, pa.Field[Any]]] = []
    for number in range(target.num_fields):
        field = target.field(number)
        exact = [index for index, name in enumerate(names) if name == field.name]
        alike = [index for index, name in enumerate(lower) if name == field.name.lower()]
        found.append((next(iter(exact or alike), None), field))
    taken = [index for index, _ in found]
    for index, name in enumerate(names):
        if index not in taken:
            raise MisfitError(f"{path}.{name}", str(source.field(index).type), "")
    return found


def _inner_problems(dense: Any, target: Any, path: str) -> Iterator[tuple[int, str]]:
    """Inside structs, lists or maps that are not null, find values that the table can never store."""
    if pa.types.is_struct(target):
        for index, child in _pair(dense.type, target, path):
            if index is not None:
                yield from problems(dense.field(index), child, f"{path}.{child.name}")
        return
    parents = pc.list_parent_indices(_as_list(dense)).to_pylist()
    if pa.types.is_map(target):
        parts = [(dense.keys, target.key_field, "key"), (dense.items, target.item_field, "value")]
    else:
        parts = [(dense.flatten(), target.value_field, "element")]
    for part, child, name in parts:
        yield from ((parents[at], reason) for at, reason in problems(part, child, f"{path}.{name}"))


def _unfit(values: Array, target: Any) -> tuple[Array | None, str]:
    if isinstance(target, pa.UuidType) and not pa.types.is_fixed_size_binary(values.type):
        return pc.invert(pc.match_substring_regex(values, _UUID)), "a string that is not a UUID"
    if _is_fixed(target) and not _is_fixed(values.type):
        return pc.not_equal(
            pc.binary_length(values), target.byte_width
        ), f"a binary value that is not {target.byte_width} bytes long"
    if pa.types.is_date(target) or pa.types.is_timestamp(target):
        what = "date" if pa.types.is_date(target) else "time"
        return _outside(*counted(values)), f"a {what} outside the years 1 to 9999"
    return None, ""


def _outside(numbers: Array, allowed: range) -> Array:
    first: Any = allowed[0]
    last: Any = allowed[-1]
    return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))


def _not_utf8(values: Array) -> Iterator[int]:
    """Find rows with invalid UTF-8, because Spark strings may contain any bytes."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        for row, value in enumerate(values.cast(pa.large_binary()).to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                yield row


def _is_taken(source: Any, target: Any) -> bool:
    if source == target or source in _WIDENED.get(target, ()):
        return True
    if isinstance(target, pa.UuidType):
        return _is_text(source) or source == pa.binary(_UUID_BYTES)
    if pa.types.is_decimal(target):
        return pa.types.is_decimal128(source) and source.scale == target.scale and source.precision <= target.precision
    if pa.types.is_timestamp(target):
        return pa.types.is_timestamp(source) and source.unit == "us" and (source.tz is None) == (target.tz is None)
    if pa.types.is_fixed_size_binary(target):
        return pa.types.is_binary(source) or pa.types.is_large_binary(source)
    return (pa.types.is_binary(target) or pa.types.is_large_binary(target)) and _is_fixed(source)


def _is_fixed(kind: Any) -> bool:
    return pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind)


def _struct(values: Any, target: Any, stored: Any) -> Array:
    children = values.flatten()  # unlike field(), flatten() omits the values inside null structs
    fields = [stored.field(number) for number in range(stored.num_fields)]
    arrays = [
        nulls(len(values), field.type)
        if index is None
        else filled(convert(children[index], one.type, field.type), field)
        for (index, one), field in zip(_pair(values.type, target, ""), fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=values.is_null() if values.null_count else None)


def _dense(values: Any) -> tuple[Array, Any, Array | None]:
    """Return the lists' offsets (the first offset is 0), the lists that are not null, and a mask of the null lists."""
    lengths = pc.fill_null(pc.list_value_length(_as_list(values)), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    _, dense = _valid(values)
    return offsets, dense, values.is_null() if values.null_count else None


def _as_list(values: Any) -> Any:
    """Treat a map as a list of entries, for functions that accept only lists."""
    if not pa.types.is_map(values.type):
        return values
    return values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field])))


def _valid(values: Any) -> tuple[Sequence[int], Any]:
    """Return the numbers of the rows that are not null, and a dense array of the values in these rows."""
    mask = values.is_valid()
    return true_rows(mask), values.filter(mask)


def _uuid_bytes(values: Any) -> Any:
    if pa.types.is_fixed_size_binary(values.type):
        return values
    plain = pc.replace_substring(values.cast(pa.string()), "-", "")
    return pa.array(
        [None if text is None else bytes.fromhex(text) for text in plain.to_pylist()], pa.binary(_UUID_BYTES)
    )


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _decoded(values: Any) -> Any:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _is_list(kind: Any) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _show(values: Any, row: int) -> str:
    try:
        shown = repr(values[row].as_py())
    except UnicodeDecodeError:
        shown = repr(values.slice(row, 1).cast(pa.large_binary())[0].as_py())
    except (ValueError, OverflowError):  # Python does not support this date
        shown = count_text(values, row)
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
