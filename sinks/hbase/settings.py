"""Check an HBase sink's arguments and tables. :class:`twopc.sinks.hbase.HBaseSink` documents the arguments."""

from __future__ import annotations

import getpass
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twopc.errors import ConfigurationError
from twopc.sinks.hbase.client import HBaseClient
from twopc.sinks.hbase.cluster import ZNODE, Cluster
from twopc.sinks.hbase.mappings import MARKED, Mapping
from twopc.sinks.hbase.staging import DATA, STATE
from twopc.sinks.staged.settings import StagedSettings

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Iterator

_TABLE: Final = re.compile(r"([A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ZNODE: Final = re.compile(r"(/[^/\s]+)+")
_SERVER: Final = re.compile(r"[^\s,]+:\d{1,5}")
_NOT_SYNCED: Final = {b"SKIP_WAL", b"ASYNC_WAL"}
_FOR_EVER: Final = {b"", b"FOREVER", b"2147483647"}


@dataclass(frozen=True, kw_only=True)
class HBaseSettings(StagedSettings):
    """See :class:`StagedSettings`."""

    positive: ClassVar = (*StagedSettings.positive, "max_cell_bytes")

    zookeeper: str
    table: str
    mapping: Mapping
    znode: str = ZNODE
    staging_table: str = "twopc"
    user: str = ""
    chunk_bytes: int = 1_048_576
    max_cell_bytes: int = 10_000_000
    timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        super().__post_init__()
        is_quorum = all(_SERVER.fullmatch(server) for server in self.zookeeper.split(","))
        self._require(is_quorum, "zookeeper", "pass 'host:port', or several such addresses, separated by commas")
        self._require(_ZNODE.fullmatch(self.znode), "znode", "pass a path in ZooKeeper, such as '/hbase'")
        for argument in ("table", "staging_table"):
            self._require(_TABLE.fullmatch(getattr(self, argument)), argument, "pass 'table' or 'namespace:table'")
        self._require(self.table != self.staging_table, "staging_table", "the staging table must not be the data table")
        self._require(
            isinstance(self.mapping, Mapping),
            "mapping",
            "pass a mapping from twopc.sinks.hbase.mappings, such as Put(row='{id}', cells={'d:name': 'name'})",
        )

    def create_client(self) -> HBaseClient:
        """See :class:`StagedSettings`."""
        user, timeout_s = self.user or self._own_user(), self.response_timeout_s
        cluster = Cluster(self.zookeeper, znode=self.znode, user=user, timeout_s=timeout_s)
        # A start refuses a staging table that is not durable, and only the driver may be able to read the schemas.
        return HBaseClient(cluster, timeout_s=self.timeout_ms / 1000, synced=[self.staging_table])

    def _own_user(self) -> str:
        """Determine this process's user name in the same way as HBase clients do without Kerberos."""
        try:
            return getpass.getuser()
        except (
            KeyError,
            OSError,
        ):  # the user id has no name, as in an OpenShift container; OSError since Python 3.13
            if named := os.environ.get("HADOOP_USER_NAME"):
                return named
            raise ConfigurationError(
                f"HBaseSink(user=''): no user name exists on this machine for this process's user id {os.getuid()}, but "
                "HBase needs a user name. Pass user='…', or set HADOOP_USER_NAME for the driver and the executors"
            ) from None

    def objections(self, found: collections.abc.Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
        """See :class:`StagedSettings`. ``found`` contains the existing tables' schemas."""
        yield self.table not in found, f"table {self.table!r} does not exist: create it, or check the name"
        ttls = _ttls(found[self.table])
        for family in sorted({family for family, _ in self.mapping.places}):
            name = family.decode()
            yield (
                family not in ttls,
                f"table {self.table!r} has no column family {name!r}: add this family, or correct the mapping",
            )
            yield (
                self.mapping.operation in MARKED and ttls[family] not in _FOR_EVER,
                (
                    f"column family {name!r} of table {self.table!r} has a TTL, so its markers would expire, and rows could "
                    "be applied twice. Remove the TTL, or use a family without a TTL"
                ),
            )
        if self.staging_table not in found:
            return  # the first driver creates this table
        yield (
            not is_synced(found[self.staging_table]),
            (
                f"the sink's own table {self.staging_table!r} has the durability SKIP_WAL or ASYNC_WAL, so a crash could lose "
                "decided rows: set its DURABILITY to USE_DEFAULT, SYNC_WAL or FSYNC_WAL"
            ),
        )
        ttls = _ttls(found[self.staging_table])
        for family in (STATE, DATA):
            name = family.decode()
            yield (
                family not in ttls,
                f"the sink's own table {self.staging_table!r} has no column family {name!r}: add this family with VERSIONS=1",
            )
            yield (
                ttls[family] not in _FOR_EVER,
                f"column family {name!r} of table {self.staging_table!r} has a TTL, so decided rows could expire: remove the TTL",
            )


def is_synced(schema: Any) -> bool:
    """Return whether HBase, by default, acknowledges a write to the table only when it is in the write-ahead log."""
    attributes = {pair.first: pair.second for pair in schema.attributes}
    return attributes.get(b"DURABILITY") not in _NOT_SYNCED


def _ttls(schema: Any) -> dict[bytes, bytes]:
    return {
        family.name: {pair.first: pair.second for pair in family.attributes}.get(b"TTL", b"")
        for family in schema.column_families
    }
