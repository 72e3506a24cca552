"""Hash a row in SQL, so that different values have different hashes."""

from __future__ import annotations

from itertools import chain
from typing import Final

from pyspark.sql import types as st

from twopc.integration.spark.offers import is_ambiguous, quoted

#: Types that Spark does not hash, and that no sink accepts.
_UNHASHED: Final = frozenset({"variant", "geometry", "geography"})


def can_be_hashed(kind: st.DataType) -> bool:
    """Whether Spark can hash the type, as :func:`hash_arguments` writes it.

    Also False for a struct with two fields of the same name. Spark cannot pass such a struct to the driver, so a direct batch
    would fail, although tasks could write the struct.
    """
    if isinstance(kind, st.StructType):
        # In an expression, names that differ only in case are the same name.
        is_readable = not is_ambiguous(kind) if has(st.MapType, kind) else len(set(kind.names)) == len(kind)
        return is_readable and all(map(can_be_hashed, parts(kind)))
    return kind.typeName() not in _UNHASHED and all(map(can_be_hashed, parts(kind)))


def hash_arguments(sql: str, kind: st.DataType, depth: int = 0) -> list[str]:
    """Return arguments for ``xxhash64`` that differ for any two different values of ``sql``.

    Spark hashes only the leaves of a nested value. It skips nulls, ignores a zero's sign, and does not mark where an array ends.
    So without further arguments, ``(null, 'a')`` and ``('a', null)`` would have the same hash. Spark does not hash a map, so
    a map becomes its entries. A map's text (``to_json``) cannot be hashed instead, because the text of a binary key differs
    between two evaluations.
    """
    if isinstance(kind, st.StructType):
        if is_ambiguous(kind):  # Spark cannot read each field, and rare different values have the same hash and text
            return [f"{sql} IS NULL", sql, f"CAST({sql} AS STRING)"]
        fields = (hash_arguments(f"{sql}.{quoted(field.name)}", field.dataType, depth) for field in kind)
        return [f"{sql} IS NULL", *chain.from_iterable(fields)]
    if isinstance(kind, st.MapType):
        sql, kind = f"map_entries({sql})", _entries(kind)
    if isinstance(kind, st.ArrayType):
        name = f"x{depth}"
        element = hash_arguments(name, kind.elementType, depth + 1)
        if element[1:] == [name]:  # Spark hashes an array's leaves faster than a function of each leaf
            elements = [sql, _marks(sql, kind.elementType, f"xxhash64(transform({sql}, {name} -> {element[0]}))")]
        else:
            elements = [f"transform({sql}, {name} -> xxhash64({', '.join(element)}))"]
        return [f"{sql} IS NULL", f"array_size({sql})", *elements]
    if isinstance(kind, (st.FloatType, st.DoubleType)):
        return [
            f"CASE WHEN {sql} IS NULL THEN 1 WHEN {sql} = 0 AND CAST({sql} AS STRING) = '-0.0' THEN 2 ELSE 0 END",
            sql,
        ]
    # Two different texts may be equal in a collation, and Spark may hash them as equal.
    is_collated = isinstance(kind, st.StringType) and "collate" in kind.simpleString()
    return [f"{sql} IS NULL", f"CAST({sql} AS BINARY)" if is_collated else sql]


def _marks(sql: str, kind: st.DataType, marks: str) -> str:
    """Compute the marks of an array's leaves only if a leaf may be null or zero, because an array may be long (an embedding)."""
    if not isinstance(kind, st.NumericType):
        return marks
    has_neither = f"array_contains({sql}, CAST(0 AS {kind.simpleString()})) = false"  # null if an element is null
    return f"IF({has_neither}, 0L, {marks})"


def _entries(kind: st.MapType) -> st.ArrayType:
    return st.ArrayType(st.StructType([st.StructField("key", kind.keyType), st.StructField("value", kind.valueType)]))


def parts(kind: st.DataType) -> list[st.DataType]:
    """Return the types directly inside a nested type."""
    if isinstance(kind, st.StructType):
        return [field.dataType for field in kind]
    if isinstance(kind, st.MapType):
        return [kind.keyType, kind.valueType]
    return [kind.elementType] if isinstance(kind, st.ArrayType) else []


def has(wanted: type[st.DataType], kind: st.DataType) -> bool:
    """Whether ``kind`` is an instance of ``wanted``, or contains one."""
    return isinstance(kind, wanted) or any(has(wanted, part) for part in parts(kind))
