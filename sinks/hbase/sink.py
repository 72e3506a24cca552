"""The HBase sink: what its user describes.

It speaks HBase's own protocol, without a gateway. What decides is one thing: a mutation and its marker in one conditional,
atomic step, for many rows in a call. HBase's native ``Multi`` has that since 2.4. The Thrift gateways make one call a row,
Thrift 1 checks and writes a single cell, and Thrift 2 has no increment or append under a condition.
"""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sinks.hbase.client import HBaseLink
from sinks.hbase.cluster import Cluster
from sinks.hbase.mappings import Mapping
from sinks.hbase.staging import pack
from sinks.hbase.writer import HBaseHandle, HBaseWriter, require_fits
from sinks.hbase.zookeeper import ZNODE
from twopc.errors import ConfigurationError
from twopc.sink import TwoPhaseCommitSink

if TYPE_CHECKING:
    import pyarrow as pa

    from sinks.hbase.committer import HBaseCommitter
    from twopc.attempt import TaskAttempt

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TABLE: Final = re.compile(r"([A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ZNODE: Final = re.compile(r"(/[^/\s]+)+")
_SERVER: Final = re.compile(r"[^\s,]+:\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class HBaseSink(TwoPhaseCommitSink[HBaseHandle]):
    """Rows to a table of HBase, each applied once, after the decision.

    Tasks stage their mutations in the sink's own table, where nobody reads them; after the decision the driver applies them,
    chunk by chunk, each row in one atomic step with what shows that it is done.

    Args:
        name: names the sink across restarts. Letters, digits, ``_`` and ``-``.
        zookeeper: ``host:port,…``: HBase's quorum (``hbase.zookeeper.quorum``).
        table: ``table`` or ``namespace:table``; it must exist.
        mapping: what becomes of a row, one of ``sinks.hbase.mappings``.
        znode: where HBase is there (``zookeeper.znode.parent``).
        staging_table: the sink's own table, made where there is none. Sinks may share it.
        user: who the servers take this for; without one the process's user.
        chunk_rows: rows that are applied before that is noted.
        chunk_bytes: and at most so many bytes; a larger row is a chunk of its own.
        max_cell_bytes: what HBase takes in one cell (``hbase.server.keyvalue.maxsize``); a row must fit into one.
        timeout_ms: how long one step may wait for HBase.

    Raises:
        ConfigurationError: names the argument, and what to give instead.
    """

    name: str
    zookeeper: str
    table: str
    mapping: Mapping
    znode: str = ZNODE
    staging_table: str = "twopc"
    user: str = ""
    chunk_rows: int = 1_000
    chunk_bytes: int = 1_048_576
    max_cell_bytes: int = 10_000_000
    timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"HBaseSink(name={self.name!r}): use 1 to 100 letters, digits, '_' or '-'")
        if not all(_SERVER.fullmatch(server) for server in self.zookeeper.split(",")):
            raise ConfigurationError(
                f"HBaseSink(zookeeper={self.zookeeper!r}): give 'host:port', several with commas between them"
            )
        if not _ZNODE.fullmatch(self.znode):
            raise ConfigurationError(f"HBaseSink(znode={self.znode!r}): give a path of ZooKeeper, such as '/hbase'")
        for argument in ("table", "staging_table"):
            if not _TABLE.fullmatch(getattr(self, argument)):
                raise ConfigurationError(
                    f"HBaseSink({argument}={getattr(self, argument)!r}): give 'table' or 'namespace:table'"
                )
        if self.table == self.staging_table:
            raise ConfigurationError(f"HBaseSink(staging_table={self.table!r}): the sink needs a table of its own")
        if not isinstance(self.mapping, Mapping):
            raise ConfigurationError(
                f"HBaseSink(mapping={self.mapping!r}): give one of sinks.hbase.mappings, such as "
                "Put(row='{id}', cells={'d:name': 'name'})"
            )
        for argument in ("chunk_rows", "chunk_bytes", "max_cell_bytes", "timeout_ms"):
            if getattr(self, argument) <= 0:
                raise ConfigurationError(f"HBaseSink({argument}={getattr(self, argument)}): give a positive number")

    @property
    def handle_type(self) -> type[HBaseHandle]:
        """See :class:`TwoPhaseCommitSink`."""
        return HBaseHandle

    @property
    def columns(self) -> frozenset[str]:
        """See :class:`TwoPhaseCommitSink`: those that the mapping names."""
        return self.mapping.columns

    def check(self, rows: pa.RecordBatch) -> None:
        """See :class:`TwoPhaseCommitSink`. What a counter's cell holds is another matter: the task looks at it."""
        for mutation in self.mapping.mutations(self.mapping.encode(rows).items()):
            require_fits(pack([mutation]), mutation.row, self.max_cell_bytes)

    def create_writer(self, task: TaskAttempt) -> HBaseWriter:
        """See :class:`TwoPhaseCommitSink`."""
        return HBaseWriter(task, self)

    def create_committer(self) -> HBaseCommitter:
        """See :class:`TwoPhaseCommitSink`."""
        from sinks.hbase.committer import HBaseCommitter  # noqa: PLC0415 - executors need no committer

        return HBaseCommitter(self)

    def link(self) -> HBaseLink:
        """A way to HBase of one's own, not yet connected."""
        timeout_s = self.timeout_ms / 1000
        cluster = Cluster(self.zookeeper, znode=self.znode, user=self.user or getpass.getuser(), timeout_s=timeout_s)
        return HBaseLink(cluster, timeout_s=timeout_s)
