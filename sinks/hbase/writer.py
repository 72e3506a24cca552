"""Stage a task's mutations, chunk by chunk, in one row of the sink's own table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from twopc.errors import BadRecordError, RetriableError
from twopc.sinks.hbase import staging
from twopc.sinks.hbase.check import Check
from twopc.sinks.hbase.staging import HBaseHandle
from twopc.sinks.staged.slices import halve
from twopc.sinks.staged.writer import StagedWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from twopc.attempt import TaskAttempt
    from twopc.sinks.hbase.check import Reach
    from twopc.sinks.hbase.settings import HBaseSettings

#: The hashes of this many row keys take at most about 10 MB.
_WATCHED_KEYS: Final = 100_000


class HBaseWriter(StagedWriter[HBaseHandle]):
    """See :class:`StagedWriter`."""

    def __init__(self, task: TaskAttempt, settings: HBaseSettings) -> None:
        client = settings.create_client()
        super().__init__(task, settings.name, client)
        self._settings = settings
        self._check = Check(client, settings)
        self._table = settings.staging_table
        self._row = staging.slice_row(settings.name, self._entry)
        self._digests: list[bytes] = []
        self._seen: set[int] | None = set()  # hashes of row keys; None after a duplicate or too many keys

    def begin_transaction(self) -> None:
        """See :class:`StagedWriter`."""
        self._execute([staging.open_slice(self._table, self._row)], "opening")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`StagedWriter`."""
        mapping = self._settings.mapping
        for start in range(0, rows.num_rows, self._settings.chunk_rows):
            encoded = mapping.encode(rows.slice(start, self._settings.chunk_rows))
            self._watch(encoded)
            try:
                reach = self._check.reach(encoded)
            except self._client.failures as error:
                what = f"sink {self._sink!r}, reading cells for slice {self._entry}"
                raise self._client.translate(error, what) from error
            self._add(list(encoded), list(mapping.actions(encoded.items())), reach)

    def pre_commit(self) -> HBaseHandle:
        """See :class:`StagedWriter`."""
        return HBaseHandle(
            uuid=self._uuid,
            driver_epoch=self._task.driver_epoch,
            partition=self._task.partition,
            table=self._settings.table,
            operation=self._settings.mapping.operation,
            chunks=len(self._digests),
            distinct=self._seen is not None,
            rows=self.rows,
            checksum=staging.fold(self._digests),
        )

    def _remove(self) -> list[Any]:
        return self._client.execute([staging.remove_slice(self._table, self._row)])

    def _watch(self, keys: Iterable[bytes]) -> None:
        """Look for duplicate row keys, until the search takes too much memory."""
        if self._seen is not None:
            before = len(self._seen)
            fresh = {hash(key) for key in keys}
            self._seen |= fresh
            if len(self._seen) < before + len(fresh) or len(self._seen) > _WATCHED_KEYS:
                self._seen = None

    def _add(self, keys: Sequence[bytes], actions: Sequence[bytes], reach: Reach) -> None:
        def pack(part: range) -> bytes:
            return staging.pack(actions[part.start : part.stop])

        # A chunk is staged in one cell, whose size includes the cell's key.
        room = self._settings.max_cell_bytes - staging.staged_size(self._sink, b"")
        for part, data in halve(range(len(actions)), pack, max_bytes=min(self._settings.chunk_bytes, room)):
            require_fits(staging.staged_size(self._sink, data), keys[part.start], self._settings.max_cell_bytes)
            chunk = staging.add_chunk(self._table, self._row, len(self._digests), data, reach)
            [is_open] = self._execute([chunk], "writing")
            if not is_open:
                raise RetriableError(
                    f"sink {self._sink!r}: slice {self._entry} was swept, because the driver abandoned the attempt. No part "
                    "of the slice was applied"
                )
            self._digests.append(staging.digest(data))


def require_fits(size: int, row: bytes, max_bytes: int) -> None:
    """Check a row's size. The row's chunk becomes one cell in the staging table, and each value may become a cell in HBase.

    Raises:
        BadRecordError: the row is too large.
    """
    if size > max_bytes:
        raise BadRecordError(
            f"row {row[:40]!r} takes up {size} bytes, but HBase accepts at most {max_bytes} bytes in a cell. Make the "
            "row smaller, or increase hbase.server.keyvalue.maxsize and HBaseSink(max_cell_bytes=…)"
        )
