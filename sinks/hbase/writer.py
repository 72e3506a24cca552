"""The executor's side of an HBase sink: a task's mutations become an immutable slice that nobody reads."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from sinks.hbase import staging
from sinks.hbase.errors import translate
from sinks.hbase.handle import HBaseHandle
from sinks.hbase.mappings import Increment, add
from sinks.hbase.row_ops import cells_of, look
from twopc.crash_points import crash_point
from twopc.errors import BadRecordError, RetriableError
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from sinks.hbase.messages import Message
    from sinks.hbase.mutations import Values
    from sinks.hbase.row_ops import Op
    from sinks.hbase.settings import HBaseSettings
    from twopc.attempt import TaskAttempt

logger = logging.getLogger(__name__)

#: About 10 MB of hashes.
_WATCHED_KEYS: Final = 100_000


class HBaseWriter(SinkWriter[HBaseHandle]):
    """See :class:`SinkWriter`. Rows have the DataFrame's own columns; the mapping picks those it needs."""

    def __init__(self, task: TaskAttempt, settings: HBaseSettings) -> None:
        self._settings = settings
        self._task = task
        self._uuid = uuid.uuid4().hex
        self._row = staging.slice_row(settings.name, task.driver_epoch, self._uuid)
        self._client = settings.create_client()
        self._rows = 0
        self._digests: list[bytes] = []
        self._seen: set[int] | None = set()  # hashes of row keys; None: too many, or one came twice

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        self._execute([staging.open_slice(self._settings.staging_table, self._row)], "opening its slice")
        crash_point("task.began")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. Rows are staged at once: memory is that of one Arrow batch."""
        for start in range(0, rows.num_rows, self._settings.chunk_rows):
            encoded = self._settings.mapping.encode(rows.slice(start, self._settings.chunk_rows))
            self._watch(encoded)
            if isinstance(self._settings.mapping, Increment):
                self._require_counters(encoded)
            for data in self._cut(list(self._settings.mapping.mutations(encoded.items()))):
                self._stage(data)
        self._rows += rows.num_rows

    def pre_commit(self) -> HBaseHandle:
        """See :class:`SinkWriter`: HBase has acknowledged every chunk already."""
        crash_point("task.written")
        crash_point("task.flushed")
        return HBaseHandle(
            uuid=self._uuid,
            driver_epoch=self._task.driver_epoch,
            partition=self._task.partition,
            table=self._settings.table,
            operation=self._settings.mapping.operation,
            chunks=len(self._digests),
            distinct=self._seen is not None,
            rows=self._rows,
            checksum=staging.fold(self._digests),
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        [answer] = self._client.execute([staging.remove_slice(self._settings.staging_table, self._row)])
        if isinstance(answer, Exception):
            logger.warning(
                "sink %r: slice %s was not removed; the driver's sweep will remove it. No data is at risk: %s",
                self._settings.name,
                self._row.decode(),
                answer,
            )

    def close(self) -> None:
        """See :class:`SinkWriter`."""
        super().close()
        self._client.close()

    def _watch(self, keys: Iterable[bytes]) -> None:
        """Watch for a row key that comes twice, as long as that takes little memory."""
        if self._seen is not None:
            before = len(self._seen)
            fresh = {hash(key) for key in keys}
            self._seen |= fresh
            if len(self._seen) < before + len(fresh) or len(self._seen) > _WATCHED_KEYS:
                self._seen = None

    def _stage(self, data: bytes) -> None:
        op = staging.add_chunk(self._settings.staging_table, self._row, len(self._digests), data)
        [is_open] = self._execute([op], "staging a chunk")
        if not is_open:
            raise RetriableError(
                f"sink {self._settings.name!r}: slice {self._row.decode()} was swept: the driver gave its attempt up"
            )
        self._digests.append(staging.digest(data))

    def _cut(self, mutations: Sequence[Message]) -> Iterator[bytes]:
        data = staging.pack(mutations)
        if len(data) > self._settings.chunk_bytes and len(mutations) > 1:
            middle = len(mutations) // 2
            yield from self._cut(mutations[:middle])
            yield from self._cut(mutations[middle:])
            return
        require_fits(data, mutations[0].row, self._settings.max_cell_bytes)
        yield data

    def _require_counters(self, encoded: dict[bytes, Values]) -> None:
        """Check the present values now: HBase would reject a wrong one only after the decision."""
        places = self._settings.mapping.places
        answers = self._execute([look(self._settings.table, row, places) for row in encoded], "reading counters")
        for (row, values), answer in zip(encoded.items(), answers, strict=True):
            held = cells_of(answer)
            for place, value in zip(places, values, strict=True):
                if place in held:
                    try:
                        add(held[place].value, value)
                    except BadRecordError as error:
                        raise BadRecordError(
                            f"sink {self._settings.name!r}: row {row!r}, {b':'.join(place).decode()}: {error}"
                        ) from None

    def _execute(self, ops: Sequence[Op], what: str) -> list[Any]:
        answers = self._client.execute(ops)
        for answer in answers:
            if isinstance(answer, Exception):
                raise translate(answer, f"sink {self._settings.name!r}, {what}") from answer
        return answers


def require_fits(data: bytes, row: bytes, max_bytes: int) -> None:
    """Check a single row's size: its chunk becomes one cell, and so may one of its values.

    Raises:
        BadRecordError: the row is too large.
    """
    if len(data) > max_bytes:
        raise BadRecordError(
            f"row {row[:40]!r} has {len(data)} bytes; HBase takes at most {max_bytes} in a cell. Make it smaller, or raise "
            "hbase.server.keyvalue.maxsize and HBaseSink(max_cell_bytes=…)"
        )
