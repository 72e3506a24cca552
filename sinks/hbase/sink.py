"""Define the HBase sink that users create.

The sink uses the HBase protocol directly, without a gateway. A mutation and its marker must be one conditional, atomic
step, and one call must carry many rows. HBase's native ``Multi`` call has met these two requirements since HBase 2.4.
The Thrift gateways make one call per row. Thrift 1 can check and write only a single cell, and Thrift 2 has no
conditional increment or append.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twopc.sink import TwoPhaseCommitSink
from twopc.sinks.columns import no_rows
from twopc.sinks.hbase.committer import HBaseCommitter
from twopc.sinks.hbase.settings import HBaseSettings
from twopc.sinks.hbase.staging import HBaseHandle, pack, staged_size
from twopc.sinks.hbase.writer import HBaseWriter, require_fits

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from twopc.attempt import TaskAttempt


@dataclass(frozen=True, kw_only=True)
class HBaseSink(HBaseSettings, TwoPhaseCommitSink[HBaseHandle]):
    """Writes each row to an HBase table exactly once.

    Tasks stage their mutations in the sink's own table, which no reader uses. After the decision, the driver applies
    the mutations chunk by chunk. Each row changes together with its marker, in one atomic step.

    Args:
        name: the sink name, which must stay the same across restarts. A name may contain letters, digits, ``_`` and
            ``-``.
        zookeeper: the ZooKeeper quorum, ``host:port,…`` (``hbase.zookeeper.quorum``).
        table: ``table`` or ``namespace:table``. The table must exist.
        mapping: how to convert rows to mutations; an instance of a class from ``twopc.sinks.hbase.mappings``.
        znode: the HBase path in ZooKeeper (``zookeeper.znode.parent``).
        staging_table: the sink's own table. The sink creates this table if it does not exist. Several sinks may share
            one staging table.
        user: the user name that the servers see. If the name is empty, the sink uses the name of this process's user.
        chunk_rows: the maximum number of rows that the driver applies in one step.
        chunk_bytes: the maximum size of a chunk in bytes. A larger row is applied as a separate chunk. A chunk also fits into
            ``max_cell_bytes``.
        max_cell_bytes: the maximum HBase cell size in bytes (``hbase.server.keyvalue.maxsize``). A row must fit into one cell.
        timeout_ms: how long one step may wait for HBase. After a third of this time without a response, the sink sends the
            request again.

    Raises:
        ConfigurationError: an argument is invalid. The message identifies the argument and says what to pass instead.
    """

    handle_type = HBaseHandle
    keeps_task_order = True

    def check_schema(self, schema: pa.Schema) -> None:
        """See :class:`TwoPhaseCommitSink`."""
        self.mapping.encode(no_rows(schema))

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. A task checks the existing counters later, before the decision."""
        encoded = self.mapping.encode(rows)
        for row, action in zip(encoded, self.mapping.actions(encoded.items()), strict=True):
            require_fits(staged_size(self.name, pack([action])), row, self.max_cell_bytes)

    def destinations_of(self, handle: HBaseHandle) -> Collection[str]:
        """See :class:`TwoPhaseCommitSink`. The checkpoint is bound neither to the table nor to the mapping's operation."""
        return {f"table {handle.table} with the mapping {handle.operation.capitalize()}"}

    def create_writer(self, task: TaskAttempt) -> HBaseWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return HBaseWriter(task, self)

    def create_committer(self) -> HBaseCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        return HBaseCommitter(self)
