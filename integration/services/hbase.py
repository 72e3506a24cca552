"""Run a real HBase without Docker: `with LocalHBase() as hbase: ... hbase.zookeeper`.

The master, the region server and ZooKeeper run in one process, from the jars in `.jars`. The process listens on
127.0.0.1 and has a real write-ahead log on the local file system. The sink speaks the HBase protocol, so no Thrift
gateway is needed.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from twopc.integration.services import ServiceError
from twopc.integration.services.jar_sets import HBASE_VERSION
from twopc.integration.services.jars import hbase_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LOG4J, LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["LocalHBase", "ServiceError"]

_PROPERTIES: Mapping[str, str] = {
    # The only region server is in the same process, so do not wait for others. Then a start takes 3 s instead of 10 s.
    "hbase.master.wait.on.regionservers.mintostart": "1",
    "hbase.master.wait.on.regionservers.maxtostart": "1",
    "hbase.master.wait.on.regionservers.timeout": "100",
    "hbase.master.wait.on.regionservers.interval": "50",
    "hbase.regionserver.msginterval": "100",
    "hbase.procedure.remote.dispatcher.delay.msec": "20",
    # Tests pause the process. With the default timeout, its sessions would expire after 10 s, and the resumed process
    # would exit.
    "zookeeper.session.timeout.localHBaseCluster": "120000",
    "zookeeper.session.timeout": "120000",
    "hbase.zookeeper.property.maxSessionTimeout": "300000",
    # These values suit two cores and 384 MB of memory.
    "hbase.regionserver.handler.count": "10",
    "hbase.regionserver.metahandler.count": "4",
    "hbase.bucketcache.size": "0",
    "hfile.block.cache.size": "0.1",
}
_JVM_FLAGS = (
    *FAST_START,
    # HBase 2.6 uses internals of the JDK, which Java 17 and newer allow only with these flags.
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "java.lang")),
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
_MASTER, _REGION_SERVER, _ZOOKEEPER = "master", "region server", "zookeeper"
_READY = "Master has completed initialization"
_LOG4J = f"{LOG4J}log4j.logger.org.apache.zookeeper=WARN\n"


class LocalHBase(LocalServer):
    """A complete HBase in one process. HBase exits when its owner exits, even if kill -9 ends the owner.

    Attributes:
        data_dir: the directory for everything that HBase writes. The file `server.log` in the directory contains the log of
            all runs.
        properties: entries of hbase-site.xml; changes apply at the next start.
    """

    _PORT_TAKEN = ("Address already in use", "Could not start ZK at requested port")
    #: An orderly shutdown flushes every region, which takes up to 23 s.
    _STOP_TIMEOUT_S = 40

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        heap: str = "384m",
    ) -> None:
        """Configure HBase, but do not start it yet.

        Args:
            properties: entries of hbase-site.xml that override or add to the defaults.
            data_dir: see `LocalServer`.
            heap: maximum Java heap (`-Xmx`).
        """
        super().__init__(f"HBase {HBASE_VERSION}", [_MASTER, _REGION_SERVER, _ZOOKEEPER], data_dir)
        self.properties = {**_PROPERTIES, **(properties or {})}
        self._heap = heap

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's `host:port`, which restarts do not change. A client finds everything else through this address."""
        return f"{HOST}:{self._ports.get(_ZOOKEEPER, 0)}"

    def _program(self) -> list[str]:
        class_path = ":".join(map(str, [self.data_dir / "conf", *hbase_jars()]))
        return [str(java_command()), f"-Xmx{self._heap}", *_JVM_FLAGS, "-cp", class_path]

    def _launch(self, program: list[str]) -> None:
        """Start HBase, and return when the master is ready. The tables' regions may come online a moment later."""
        # ZooKeeper's data is expendable. If it were kept, a restart would wait until a killed server's session expires.
        shutil.rmtree(self.data_dir / "zookeeper", ignore_errors=True)
        conf = self.data_dir / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "log4j.properties").write_text(_LOG4J)
        (conf / "hbase-site.xml").write_text(_site({**self._addresses(), **self.properties}))
        command = [*program, "org.apache.hadoop.hbase.master.HMaster", "start"]
        self._serve(command, lambda: _READY in self._log_of_start())

    def _addresses(self) -> dict[str, str]:
        zookeeper = str(self._ports[_ZOOKEEPER])
        return {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": f"file://{self.data_dir}/hbase",
            "hbase.tmp.dir": str(self.data_dir / "temporary"),
            # A local file system has no hflush: data survives a crash of the process, not of the machine.
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.zookeeper.quorum": HOST,
            "hbase.zookeeper.property.clientPort": zookeeper,
            "hbase.zookeeper.property.clientPortAddress": HOST,
            "hbase.zookeeper.property.dataDir": str(self.data_dir / "zookeeper"),
            "hbase.master.hostname": HOST,
            "hbase.master.ipc.address": HOST,
            "hbase.master.port": str(self._ports[_MASTER]),
            "hbase.master.info.port": "-1",
            "hbase.regionserver.hostname": HOST,
            "hbase.regionserver.ipc.address": HOST,
            "hbase.regionserver.port": str(self._ports[_REGION_SERVER]),
            "hbase.regionserver.info.port": "-1",
        }


def _site(properties: Mapping[str, str]) -> str:
    entries = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{entries}</configuration>\n'
