"""The HBase sink, as its user describes it.

The sink speaks HBase's own protocol, without a gateway. A mutation and its marker must be one conditional, atomic step, and
one call must carry many rows. HBase's native ``Multi`` offers this since 2.4. The Thrift gateways make one call per row.
Thrift 1 checks and writes a single cell, and Thrift 2 has no increment or append under a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.columns import no_rows
from twopc.sinks.hbase.committer import HBaseCommitter
from twopc.sinks.hbase.settings import HBaseSettings
from twopc.sinks.hbase.staging import HBaseHandle, pack
from twopc.sinks.hbase.writer import HBaseWriter, require_fits

if TYPE_CHECKING:
    import pyarrow as pa

    from twopc.attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class HBaseSink(HBaseSettings, TwoPhaseCommitSink[HBaseHandle]):
    """Writes rows to a table of HBase, each applied once, after the decision.

    Tasks stage their mutations in the sink's own table, where nobody reads them. After the decision, the driver applies them
    chunk by chunk, each row in one atomic step with its marker.

    Args:
        name: the sink's name across restarts. Letters, digits, ``_`` and ``-``.
        zookeeper: HBase's quorum, ``host:port,…`` (``hbase.zookeeper.quorum``).
        table: ``table`` or ``namespace:table``; it must exist.
        mapping: the conversion of rows to mutations, one of ``twopc.sinks.hbase.mappings``.
        znode: HBase's path in ZooKeeper (``zookeeper.znode.parent``).
        staging_table: the sink's own table, created if absent. Sinks may share it.
        user: the user name that servers see; the process's user if empty.
        chunk_rows: the number of rows that are applied before progress is recorded.
        chunk_bytes: the maximum size of a chunk in bytes; a larger row is a chunk by itself.
        max_cell_bytes: the maximum size of a cell in HBase (``hbase.server.keyvalue.maxsize``); a row must fit into one cell.
        timeout_ms: how long one step may wait for HBase.

    Raises:
        ConfigurationError: an argument is invalid. The message names the argument and says what to pass instead.
    """

    handle_type = HBaseHandle

    def check_schema(self, schema: pa.Schema) -> None:
        """See :class:`TwoPhaseCommitSink`."""
        self.mapping.encode(no_rows(schema))

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. A counter's cell is checked later, by the task, before the decision."""
        encoded = self.mapping.encode(rows)
        for row, action in zip(encoded, self.mapping.actions(encoded.items()), strict=True):
            require_fits(pack([action]), row, self.max_cell_bytes)

    def create_writer(self, task: TaskAttempt) -> HBaseWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return HBaseWriter(task, self)

    def create_committer(self) -> HBaseCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return HBaseCommitter(self)
