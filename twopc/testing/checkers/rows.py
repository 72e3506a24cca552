"""Check any output: each row appears once, no batch is incomplete, and rows with the same key are in order."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from twopc.testing.checkers.history import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

RowT = TypeVar("RowT", bound="Hashable")

_CHECKER = "rows"


def not_once(given: Iterable[RowT], found: Iterable[RowT]) -> list[Violation]:
    """Find each row that is lost, duplicated or made up.

    Args:
        given: the distinct rows that the query has processed.
        found: the rows that a reader sees, in any order.
    """
    times, wanted = Counter(found), dict.fromkeys(given)
    return [
        *(Violation(_CHECKER, "lost", (row,)) for row in wanted if not times[row]),
        *(
            Violation(_CHECKER, "duplicated", (row, count))
            for row, count in times.items()
            if row in wanted and count > 1
        ),
        *(Violation(_CHECKER, "made up", (row, count)) for row, count in times.items() if row not in wanted),
    ]


def in_part(batches: Mapping[int, Collection[RowT]], found: Iterable[RowT]) -> list[Violation]:
    """Find each batch with both visible and missing rows.

    Args:
        batches: the rows of each batch.
        found: the rows that a reader sees after all work has ended.
    """
    seen = set(found)
    missing = {batch: [row for row in rows if row not in seen] for batch, rows in batches.items()}
    return [
        Violation(_CHECKER, f"batch {batch} is only partly visible", (batch, tuple(rows)))
        for batch, rows in sorted(missing.items())
        if 0 < len(rows) < len(batches[batch])
    ]


def out_of_order(found: Iterable[Any], key_of: Callable[[Any], Hashable]) -> list[Violation]:
    """Find each row that is read after a greater row with the same key.

    Args:
        found: the rows in the order in which a reader sees them.
        key_of: returns the key of a row.
    """
    greatest: dict[Hashable, Any] = {}
    violations = []
    for row in found:
        key = key_of(row)
        if key in greatest and row < greatest[key]:
            violations.append(Violation("order", f"key {key!r} is out of order", (greatest[key], row)))
        else:
            greatest[key] = row
    return violations
