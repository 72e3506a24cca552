"""Reads from ZooKeeper where HBase's master and ``hbase:meta`` are.

``hbasedriver.zk`` is not used. If the znode is missing, as while HBase starts, it leaves its client running, which opens new
sessions until the process ends; it contacts only one of several hosts; and it waits for 10 s.
"""

from __future__ import annotations

from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from sinks.hbase.driver import ZooKeeper_pb2

#: HBase's own default of ``zookeeper.znode.parent``.
ZNODE: Final = "/hbase"
_MAGIC: Final = len(b"PBUF")


def locate_master(quorum: str, timeout_s: float, znode: str = ZNODE) -> tuple[str, int]:
    """Host and port of the active master.

    Raises:
        ConnectionError: ZooKeeper does not know it, or does not answer.
    """
    return _address(ZooKeeper_pb2.Master.FromString(_read(quorum, f"{znode}/master", timeout_s)).master)


def locate_meta(quorum: str, timeout_s: float, znode: str = ZNODE) -> tuple[str, int]:
    """Host and port of the region server that has ``hbase:meta``.

    Raises:
        ConnectionError: ZooKeeper does not know it, or does not answer.
    """
    data = _read(quorum, f"{znode}/meta-region-server", timeout_s)
    return _address(ZooKeeper_pb2.MetaRegionServer.FromString(data).server)


def _read(quorum: str, znode: str, timeout_s: float) -> bytes:
    zookeeper = KazooClient(hosts=quorum, timeout=timeout_s)
    try:
        zookeeper.start(timeout_s)
        data, _ = zookeeper.get(znode)
    except NoNodeError:
        raise ConnectionError(
            f"ZooKeeper at {quorum!r} has no {znode}: check that HBase is up, and that this is its quorum and znode"
        ) from None
    except (KazooException, KazooTimeoutError) as error:
        raise ConnectionError(f"ZooKeeper at {quorum!r} does not answer: {error or type(error).__name__}") from error
    finally:
        zookeeper.stop()
        zookeeper.close()
    # The data is 0xff, the length of the writer's name, that name, a magic word, the message.
    name_bytes = int.from_bytes(data[1:5], "big")
    return bytes(data[5 + name_bytes + _MAGIC :])


def _address(server: Any) -> tuple[str, int]:
    return server.host_name, server.port
