"""Which columns each sink is given. One Arrow batch holds those of all sinks; a view of it copies nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from integration.spark.dead_letters import CAUSE, letters

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The order-insensitive checksum of a task is the sum of this column (rule 9); computed by the JVM, not row by row here.
CHECKSUM: Final = "__twopc_checksum"
_KEY: Final = b"twopc.views"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink sees of a batch.

    Attributes:
        columns: its name for a column, and the column's place in the batch.
        of_bad_rows: whether it is given the rows that other sinks cannot take, as letters about them.
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
            [rows.column(place) for _, place in self.columns], names=[name for name, _ in self.columns]
        )


def inscribe(schema: pa.Schema, views: Mapping[str, View]) -> pa.Schema:
    """The schema with the views in its metadata: rows that are kept can be given to each sink whatever the code is then."""
    return schema.with_metadata({_KEY: msgspec.json.encode(views)})


def inscribed(schema: pa.Schema) -> dict[str, View]:
    """The views that :func:`inscribe` has put there."""
    return msgspec.json.decode((schema.metadata or {})[_KEY], type=dict[str, View])
