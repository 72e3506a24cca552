"""Describe how the sink publishes staged rows: the mode, the key, and the columns to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from twopc.sinks.postgres.target import Column, Index, Table

Mode = Literal["append", "upsert"]
#: When a batch may be decided: after its rows are staged, or after the transaction that publishes them is prepared.
Vote = Literal["staged", "prepared"]


@dataclass(frozen=True)
class Publishing:
    """Describes how the sink publishes staged rows.

    Attributes:
        table: the table.
        mode: ``append`` inserts every row; ``upsert`` updates the row that has the same key.
        written: the table's columns that the batch contains.
        key: with ``upsert``, the columns of one of the table's unique indexes.
        order_by: with ``upsert``, if several rows have the same key, the row with the greatest values in these columns wins.
        vote: with ``prepared``, the driver publishes the rows before it votes, so nothing can reject them after the decision.
    """

    table: Table
    mode: Mode
    written: tuple[str, ...]
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    vote: Vote = "staged"

    @property
    def filled(self) -> tuple[str, ...]:
        """The columns that the stage fills with defaults. Neither the batch nor the publish fills them."""
        others = {*self.written, *(column.name for column in self.left_to_the_table)}
        return tuple(column.name for column in self.table.columns if not column.generated and column.name not in others)

    @property
    def left_to_the_table(self) -> tuple[Column, ...]:
        """The columns that are missing from the batch and that only the publish can fill, from the table's sequence.

        These are identity columns, and columns in a unique index. If such a column's sequence lags behind the table, a number
        that the stage has drawn could never be published. If the publish draws the number instead, the publish succeeds as soon
        as the sequence has been corrected.
        """
        unique = {name for index in self.table.indexes if index.is_unique for name in index.columns}
        numbered = (c for c in self.table.columns if c.is_identity or (c.is_numbered and c.name in unique))
        return tuple(column for column in numbered if column.name not in self.written)

    @property
    def null_when_staged(self) -> tuple[Column, ...]:
        """The columns that are null in the stage, even if the table forbids nulls, because the publish computes them."""
        computed = (c for c in self.table.columns if c.generated == "EXPRESSION" and self.vote == "prepared")
        return (*self.left_to_the_table, *computed)

    @property
    def changed(self) -> tuple[str, ...]:
        """The columns that an upsert changes in an existing row."""
        return tuple(name for name in self.written if name not in self.key) if self.mode == "upsert" else ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The columns that an upsert keeps in an existing row, except computed columns."""
        names = (column.name for column in self.table.columns if column.generated != "EXPRESSION")
        return tuple(name for name in names if name not in self.written) if self.changed else ()

    @property
    def key_indexes(self) -> tuple[Index, ...]:
        """With ``upsert``, the unique indexes on exactly the key, on the table or on a partition.

        All of them reject the same rows. While such an index is being built or rebuilt (``CONCURRENTLY``), a second one exists
        that is not valid yet.
        """
        return tuple(index for index in self.table.indexes if self.mode == "upsert" and self._is_on_key(index))

    @property
    def key_index(self) -> Index | None:
        """The unique index that ``ON CONFLICT`` uses; None if the table has no suitable index."""
        return next((index for index in self.key_indexes if index.is_own and index.is_valid), None)

    @property
    def rival_indexes(self) -> tuple[Index, ...]:
        """With ``upsert``, the table's unique indexes that ``ON CONFLICT`` also uses, although they are not usable as the key's.

        PostgreSQL uses every unique index on the key's columns, whatever its collation and operator class. So if such an index
        considers more keys equal, an upsert updates a row with another key. An index that is not valid yet counts, too, because
        it may become valid at any time. A predicate without columns may always be true, and PostgreSQL then ignores it.
        """
        own = (index for index in self.table.indexes if self.mode == "upsert" and index.is_own and index.is_unique)
        on_key = (
            one for one in own if set(one.columns) == set(self.key) and not (one.has_expressions or one.predicate)
        )
        return tuple(index for index in on_key if index.compares_otherwise or not index.is_immediate)

    def _is_on_key(self, index: Index) -> bool:
        is_odd = index.is_partial or index.has_expressions or index.compares_otherwise or index.method != "btree"
        return index.is_unique and index.is_immediate and not is_odd and set(index.columns) == set(self.key)
