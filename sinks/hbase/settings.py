"""The arguments of an HBase sink, checked. :class:`sinks.hbase.HBaseSink` documents them."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from typing import Final

from sinks.hbase.client import HBaseClient
from sinks.hbase.cluster import Cluster
from sinks.hbase.mappings import Mapping
from sinks.hbase.zookeeper import ZNODE
from twopc.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TABLE: Final = re.compile(r"([A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ZNODE: Final = re.compile(r"(/[^/\s]+)+")
_SERVER: Final = re.compile(r"[^\s,]+:\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class HBaseSettings:
    """What a writer and a committer have to know.

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
                f"HBaseSink(zookeeper={self.zookeeper!r}): give 'host:port', or several with commas"
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

    def create_client(self) -> HBaseClient:
        """A client of the caller's own, not yet connected."""
        timeout_s = self.timeout_ms / 1000
        cluster = Cluster(self.zookeeper, znode=self.znode, user=self.user or getpass.getuser(), timeout_s=timeout_s)
        return HBaseClient(cluster, timeout_s=timeout_s)
