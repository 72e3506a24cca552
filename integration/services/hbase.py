"""A real HBase on this machine without Docker: `with LocalHBase() as hbase: ... hbase.zookeeper`.

Master, region server and ZooKeeper in one process of the jars that `integration.services.jars` fetches, with a real
write-ahead log on the local file system, on free ports of 127.0.0.1. There is no Thrift gateway: the sink speaks
HBase's own protocol.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from integration.services import server_log
from integration.services.hbase_coordinates import HBASE_VERSION
from integration.services.jars import hbase_jars
from integration.services.java import ServiceError, java_command
from integration.services.ports import HOST
from integration.services.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["LocalHBase", "ServiceError"]

FAST_START: Mapping[str, str] = {
    "hbase.master.wait.on.regionservers.mintostart": "1",
    "hbase.master.wait.on.regionservers.maxtostart": "1",
    "hbase.master.wait.on.regionservers.timeout": "100",
    "hbase.master.wait.on.regionservers.interval": "50",
    "hbase.regionserver.msginterval": "100",
    "hbase.procedure.remote.dispatcher.delay.msec": "20",
}
"""One region server that is in the same process: a start takes 3 s instead of 10 s."""

PATIENT: Mapping[str, str] = {
    "zookeeper.session.timeout.localHBaseCluster": "120000",
    "zookeeper.session.timeout": "120000",
    "hbase.zookeeper.property.maxSessionTimeout": "300000",
}
"""A test may pause it: after 10 s, by default, it would wake with its sessions expired and end itself."""

SMALL: Mapping[str, str] = {
    "hbase.regionserver.handler.count": "10",
    "hbase.regionserver.metahandler.count": "4",
    "hbase.bucketcache.size": "0",
    "hfile.block.cache.size": "0.1",
}
"""Two cores and 384 MB are enough for it."""

_JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # HBase 2.6 reaches into the JDK; from Java 17 on that must be allowed by name.
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "java.lang")),
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)
_MASTER, _REGION_SERVER, _ZOOKEEPER = "master", "region server", "zookeeper"
_READY = "Master has completed initialization"
_LOG4J = """\
log4j.rootLogger=INFO, out
log4j.logger.org.apache.zookeeper=WARN
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class LocalHBase(LocalServer):
    """A whole HBase in one process, owned by this process: it ends when its owner ends, even by kill -9.

    Attributes:
        data_dir: everything it writes; `server.log` in it is the log of every run.
        properties: entries of hbase-site.xml; changes apply at the next start.
    """

    _PORT_TAKEN = ("Address already in use", "Could not start ZK at requested port")
    #: An orderly end flushes every region and can take 23 s.
    _STOP_TIMEOUT_S = 40

    def __init__(
        self,
        *,
        properties: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        heap: str = "384m",
        start_timeout_s: float = 90,
    ) -> None:
        """Describe an HBase; nothing is started yet.

        Args:
            properties: entries of hbase-site.xml that override or add to the defaults.
            data_dir: kept directory, may hold data of an earlier run; by default a temporary one, removed by `close`.
            heap: maximal Java heap (`-Xmx`).
            start_timeout_s: how long one start may take, in seconds.
        """
        super().__init__(
            f"HBase {HBASE_VERSION}",
            ports=[_MASTER, _REGION_SERVER, _ZOOKEEPER],
            data_dir=data_dir,
            start_timeout_s=start_timeout_s,
        )
        self.properties = {**FAST_START, **PATIENT, **SMALL, **(properties or {})}
        self._heap = heap

    @property
    def zookeeper(self) -> str:
        """`host:port`, the same over restarts; a client finds everything else from there."""
        return f"{HOST}:{self._ports.get(_ZOOKEEPER, 0)}"

    def close(self) -> None:
        """End it, and remove its data directory if it is a temporary one: then nothing needs an orderly end."""
        if self._is_temporary:
            self.kill()
        super().close()

    def _program(self) -> list[str]:
        class_path = ":".join(map(str, [self.data_dir / "conf", *hbase_jars()]))
        return [str(java_command()), f"-Xmx{self._heap}", *_JVM_FLAGS, "-cp", class_path]

    def _launch(self, program: list[str]) -> None:
        """Start, and return when the master serves; regions of tables may come a moment later."""
        # It holds nothing that lasts, but a killed server's session, and whoever starts again would wait for its end.
        shutil.rmtree(self._zookeeper_dir, ignore_errors=True)
        conf = self.data_dir / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "log4j.properties").write_text(_LOG4J)
        (conf / "hbase-site.xml").write_text(_site({**self._addresses(), **self.properties}))
        begin = server_log.size(self.log_path)
        self._serve(
            [*program, "org.apache.hadoop.hbase.master.HMaster", "start"],
            lambda: _READY in server_log.text_since(self.log_path, begin),
        )

    @property
    def _zookeeper_dir(self) -> Path:
        return self.data_dir / "zookeeper"

    def _addresses(self) -> dict[str, str]:
        zookeeper = str(self._ports[_ZOOKEEPER])
        return {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": f"file://{self.data_dir}/hbase",
            "hbase.tmp.dir": str(self.data_dir / "temporary"),
            # A local file system has no hflush over machines; the process may die, the machine may not.
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.zookeeper.quorum": HOST,
            "hbase.zookeeper.property.clientPort": zookeeper,
            "hbase.zookeeper.property.clientPortAddress": HOST,
            "hbase.zookeeper.property.dataDir": str(self._zookeeper_dir),
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
