"""Which columns each sink is given. One Arrow batch holds those of all sinks; a view of it copies nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from integration.spark.dead_letters import letters

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A hash of the whole row (int64). The JVM computes it; a task only adds up the column.
CHECKSUM: Final = "__twopc_checksum"
#: Why a row is bad; null where it is not. Present only where bad rows become dead letters.
CAUSE: Final = "__twopc_cause"
_KEY: Final = b"twopc.views"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink sees of a batch. Stored with staged rows, so its fields are a format.

    Attributes:
        columns: the sink's name for a column, and the column's index in the batch.
        of_bad_rows: whether the sink is given dead letters: records about the rows that other sinks cannot take.
    """

    columns: tuple[tuple[str, int], ...]
    of_bad_rows: bool = False

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The sink's rows of a batch."""
        if CAUSE not in rows.schema.names:
            return self._named(rows)
        is_good = rows.column(CAUSE).is_null()
        if not self.of_bad_rows:
            return self._named(rows if pc.all(is_good).as_py() else rows.filter(is_good))
        bad = rows.filter(pc.invert(is_good))
        return letters(self._named(bad), bad.column(CAUSE))

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [rows.column(index) for _, index in self.columns], names=[name for name, _ in self.columns]
        )


def with_views(schema: pa.Schema, views: Mapping[str, View]) -> pa.Schema:
    """The schema with the views in its metadata: staged rows reach each sink even after the query's code has changed."""
    return schema.with_metadata({_KEY: msgspec.json.encode(views)})


def views_in(schema: pa.Schema) -> dict[str, View]:
    """The views that :func:`with_views` stored."""
    return msgspec.json.decode((schema.metadata or {})[_KEY], type=dict[str, View])
