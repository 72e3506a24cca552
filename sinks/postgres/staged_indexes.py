"""Find the table's indexes that a stage also needs, because these indexes may reject a row when a batch is published.

An index rejects a row if the columns that it stores are too wide together, or if its expression or predicate fails on the row.
A copy of the index on the stage, without uniqueness, rejects this row before the vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.sinks.postgres.values import INTEGERS

if TYPE_CHECKING:
    from twopc.sinks.postgres.target import ColumnType, Index, Table

#: An entry of this size always fits. A B-tree accepts about a third of a page, minus headers.
_ALWAYS_FITS_BYTES: Final = 2_000
#: A hash index stores only a hash. A stage has no use for a BRIN index, see :func:`may_reject_with_other_rows`.
_NEVER_TOO_WIDE: Final = frozenset({"hash", "brin"})
_BYTES_PER_CHARACTER: Final = 4
#: A value of a fixed-width type, and any Spark decimal, takes up at most this many bytes.
_FIXED_BYTES: Final = 64
_FIXED: Final = frozenset(
    {
        *INTEGERS, "bool", "numeric", "float4", "float8", "uuid", "enum", "date", "timestamp", "timestamptz", "interval", "time",
        "timetz", "inet", "cidr", "macaddr", "macaddr8", "money", "oid", "name",
    }
)  # fmt: skip


def staged_indexes(table: Table) -> tuple[str, ...]:
    """Return the text after ``CREATE INDEX ON stage USING`` for each index that may reject a row."""
    return tuple(index.definition for index in table.indexes if index.is_own and may_reject(index, table))


def may_reject(index: Index, table: Table) -> bool:
    """Return whether the index may reject a row because of the row's own values."""
    if index.has_expressions or index.is_partial:
        return True
    return index.method not in _NEVER_TOO_WIDE and _is_wide(index, table)


def columns_rejected_together(index: Index, table: Table) -> tuple[str, ...]:
    """Return the columns whose values the index may reject in combination, although it accepts each value alone.

    A GIN index stores the keys of each column separately. A fixed-width value does not make an entry too wide.
    """
    if index.has_expressions:
        return (*index.stored, *index.sources)
    is_wide = index.method not in {*_NEVER_TOO_WIDE, "gin"} and _is_wide(index, table)
    wide = [name for name in index.stored if is_wide and _widest(table.column(name).type) > _FIXED_BYTES]
    return (*index.predicate, *wide) if is_wide or index.has_fallible_predicate else ()


def stages_check(index: Index, table: Table) -> bool:
    """Return whether a stage has this index, or one that rejects the same rows."""
    if index.is_own:
        return True
    if index.is_partial or index.has_expressions:
        return False
    own = [one for one in table.indexes if one.is_own and not (one.is_partial or one.has_expressions)]
    return (index.method, index.stored) in [(one.method, one.stored) for one in own]


def may_reject_with_other_rows(index: Index, table: Table) -> bool:
    """Return whether the index may reject a row because of another row's values.

    One entry of a BRIN index summarizes many rows, and only rows that are already summarized have an entry. So an
    index on a stage would check nothing.
    """
    return index.has_extremes and (index.has_expressions or _is_wide(index, table))


def _is_wide(index: Index, table: Table) -> bool:
    return sum(_widest(table.column(name).type) for name in index.stored) > _ALWAYS_FITS_BYTES


def _widest(kind: ColumnType) -> int:
    """Return a value's maximum size in bytes. If the size has no limit, return more than any index accepts."""
    if kind.is_array or (kind.kind not in _FIXED and kind.length is None):
        return _ALWAYS_FITS_BYTES + 1
    return _FIXED_BYTES if kind.length is None else _BYTES_PER_CHARACTER * kind.length
