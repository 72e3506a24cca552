"""The executor's side of an HBase sink: a task's mutations become an immutable slice that nobody reads."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sinks.hbase import staging
from sinks.hbase.errors import translate
from sinks.hbase.mappings import Increment, add
from sinks.hbase.row_ops import cells_of, look
from twopc.crash_points import crash_point
from twopc.errors import BadRecordError, RetriableError
from twopc.writer import SinkWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from sinks.hbase.mapping import Values
    from sinks.hbase.messages import Message
    from sinks.hbase.row_ops import Op
    from sinks.hbase.sink import HBaseSink
    from twopc.attempt import TaskAttempt

logger = logging.getLogger(__name__)

#: Some 10 MB.
_WATCHED_KEYS: Final = 100_000


@dataclass(frozen=True)
class HBaseHandle:
    """A prepared slice.

    Attributes:
        uuid: names it for ever.
        driver_epoch: of the sink, when it was written.
        partition: of the task; orders the slices of a decision.
        table: that it goes to.
        operation: what is done there, in HBase's word.
        chunks: how many it has.
        distinct: whether no row key is in two of them: then the order in which they are applied is of no interest.
        rows: rows of the task.
        checksum: SHA-256 over the chunks' SHA-256.
    """

    uuid: str
    driver_epoch: int
    partition: int
    table: str
    operation: str
    chunks: int
    distinct: bool
    rows: int
    checksum: str

    @property
    def transaction(self) -> str:
        """See :class:`Handle`."""
        return f"slice {self.driver_epoch}:{self.uuid} ({self.rows} rows)"

    def row(self, sink: str) -> bytes:
        """Its row in the sink's own table."""
        return staging.slice_row(sink, self.driver_epoch, self.uuid)


class HBaseWriter(SinkWriter[HBaseHandle]):
    """See :class:`SinkWriter`. Rows have the DataFrame's own columns; the sink's mapping names those it takes."""

    def __init__(self, task: TaskAttempt, sink: HBaseSink) -> None:
        self._sink = sink
        self._task = task
        self._uuid = uuid.uuid4().hex
        self._row = staging.slice_row(sink.name, task.driver_epoch, self._uuid)
        self._link = sink.link()
        self._rows = 0
        self._digests: list[bytes] = []
        self._seen: set[int] | None = set()  # hashes of row keys; None: too many, or one of them twice

    def begin_transaction(self) -> None:
        """See :class:`SinkWriter`."""
        self._ask([staging.open_slice(self._sink.staging_table, self._row)], "opening its slice")
        crash_point("task.began")

    def write(self, rows: pa.RecordBatch) -> None:
        """See :class:`SinkWriter`. Nothing is kept: memory is that of one batch."""
        for start in range(0, rows.num_rows, self._sink.chunk_rows):
            encoded = self._sink.mapping.encode(rows.slice(start, self._sink.chunk_rows))
            self._watch(encoded)
            if isinstance(self._sink.mapping, Increment):
                self._require_counters(encoded)
            for data in self._cut(list(self._sink.mapping.mutations(encoded.items()))):
                self._stage(data)
        self._rows += rows.num_rows

    def pre_commit(self) -> HBaseHandle:
        """See :class:`SinkWriter`: every chunk is acknowledged already."""
        crash_point("task.written")
        crash_point("task.flushed")
        return HBaseHandle(
            uuid=self._uuid,
            driver_epoch=self._task.driver_epoch,
            partition=self._task.partition,
            table=self._sink.table,
            operation=self._sink.mapping.operation,
            chunks=len(self._digests),
            distinct=self._seen is not None,
            rows=self._rows,
            checksum=staging.fold(self._digests),
        )

    def abort(self) -> None:
        """See :class:`SinkWriter`."""
        [answer] = self._link.ask([staging.remove_slice(self._sink.staging_table, self._row)])
        if isinstance(answer, Exception):
            logger.warning("slice %s is left to the driver's sweep: %s", self._row.decode(), answer)

    def close(self) -> None:
        """See :class:`SinkWriter`."""
        super().close()
        self._link.close()

    def _watch(self, keys: Iterable[bytes]) -> None:
        """Notice a row key that comes again, as far as that takes little memory."""
        if self._seen is not None:
            before = len(self._seen)
            fresh = {hash(key) for key in keys}
            self._seen |= fresh
            if len(self._seen) < before + len(fresh) or len(self._seen) > _WATCHED_KEYS:
                self._seen = None

    def _stage(self, data: bytes) -> None:
        op = staging.add_chunk(self._sink.staging_table, self._row, len(self._digests), data)
        [is_open] = self._ask([op], "staging a chunk")
        if not is_open:
            raise RetriableError(f"sink {self._sink.name!r}: slice {self._row.decode()} was swept: its driver is gone")
        self._digests.append(staging.digest(data))

    def _cut(self, mutations: Sequence[Message]) -> Iterator[bytes]:
        data = staging.pack(mutations)
        if len(data) > self._sink.chunk_bytes and len(mutations) > 1:
            middle = len(mutations) // 2
            yield from self._cut(mutations[:middle])
            yield from self._cut(mutations[middle:])
            return
        require_fits(data, mutations[0].row, self._sink.max_cell_bytes)
        yield data

    def _require_counters(self, encoded: dict[bytes, Values]) -> None:
        """Look at what is there: HBase would refuse another value only after the decision."""
        places = self._sink.mapping.places
        answers = self._ask([look(self._sink.table, row, places) for row in encoded], "reading counters")
        for (row, values), answer in zip(encoded.items(), answers, strict=True):
            held = cells_of(answer)
            for place, value in zip(places, values, strict=True):
                if place in held:
                    try:
                        add(held[place].value, value)
                    except BadRecordError as error:
                        raise BadRecordError(
                            f"sink {self._sink.name!r}: row {row!r}, {b':'.join(place).decode()}: {error}"
                        ) from None

    def _ask(self, ops: Sequence[Op], what: str) -> list[Any]:
        answers = self._link.ask(ops)
        for answer in answers:
            if isinstance(answer, Exception):
                raise translate(answer, f"sink {self._sink.name!r}, {what}") from answer
        return answers


def require_fits(data: bytes, row: bytes, max_bytes: int) -> None:
    """Check a single row's size: its chunk becomes one cell, and so may one of its values.

    Raises:
        BadRecordError: it is too large.
    """
    if len(data) > max_bytes:
        raise BadRecordError(
            f"row {row[:40]!r} has {len(data)} bytes, and HBase takes at most {max_bytes} in a cell: make it smaller, or raise "
            "hbase.server.keyvalue.maxsize and HBaseSink(max_cell_bytes=…)"
        )
