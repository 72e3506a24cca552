"""A real HDFS: one namenode and one datanode, each in a separate process."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from tests.live.hadoop.jars import hdfs_jars
from twopc.integration.services.java import FAST_START, java_command
from twopc.integration.services.ports import HOST
from twopc.integration.services.server import LocalServer, Startable, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

_RPC, _HTTP, _DATA = "rpc", "http", "data"
_LOG4J2 = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
"""


class LocalHdfs(Startable):
    """A namenode and a datanode. They end when this process ends, even by kill -9.

    Attributes:
        namenode, datanode: the servers, to kill and start.
    """

    def __init__(self) -> None:
        self.namenode = _NameNode("HDFS namenode", [_RPC, _HTTP], None)
        self.datanode = _DataNode(self.namenode)

    @property
    def url(self) -> str:
        """``hdfs://host:port``; restarts do not change it."""
        return self.namenode.url

    def start(self) -> None:
        self.namenode.start()
        self.datanode.start()

    def close(self) -> None:
        for server in (self.datanode, self.namenode):
            server.close()


class _Daemon(LocalServer):
    _CLASS: str
    _READY: str

    def _program(self) -> list[str]:
        class_path = ":".join(map(str, [self.data_dir / "conf", *hdfs_jars()]))
        return [str(java_command()), "-Xmx256m", *FAST_START, "-cp", class_path, self._CLASS]

    def _configure(self, properties: Mapping[str, str]) -> None:
        conf = self.data_dir / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "log4j2.properties").write_text(_LOG4J2)
        entries = "".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
            for name, value in {**_COMMON, **properties}.items()
        )
        for site in ("core-site.xml", "hdfs-site.xml"):
            (conf / site).write_text(f'<?xml version="1.0"?>\n<configuration>\n{entries}</configuration>\n')

    def _wait_ready(self, program: list[str]) -> None:
        self._serve(program, lambda: self._READY in self._log_of_start())


_COMMON = {"dfs.replication": "1", "dfs.permissions.enabled": "false", "hadoop.tmp.dir": "/nonexistent"}


class _NameNode(_Daemon):
    _CLASS = "org.apache.hadoop.hdfs.server.namenode.NameNode"
    #: If there are no blocks, the namenode leaves safe mode immediately. Otherwise, it waits until the datanode has
    #: reported them.
    _READY = "NameNode RPC up at"

    @property
    def url(self) -> str:
        return f"hdfs://{HOST}:{self._ports.get(_RPC, 0)}"

    @property
    def takes_writes(self) -> bool:
        """Whether the namenode has left safe mode since its last start."""
        return "Leaving safe mode" in self._log_of_start()

    def _launch(self, program: list[str]) -> None:
        name = self.data_dir / "name"
        self._configure(
            {
                "fs.defaultFS": self.url,
                "dfs.namenode.name.dir": name.as_uri(),
                "dfs.namenode.rpc-address": self.url.removeprefix("hdfs://"),
                "dfs.namenode.http-address": f"{HOST}:{self._ports[_HTTP]}",
                "dfs.namenode.safemode.extension": "0",
            }
        )
        if not name.exists():
            formatting = self._run([*program, "-format", "-nonInteractive"])
            wait_until(lambda: formatting.exit_code is not None, self._START_TIMEOUT_S)
        self._wait_ready(program)


class _DataNode(_Daemon):
    _CLASS = "org.apache.hadoop.hdfs.server.datanode.DataNode"
    _READY = "successfully registered with NN"

    def __init__(self, namenode: _NameNode) -> None:
        super().__init__("HDFS datanode", [_RPC, _HTTP, _DATA], None)
        self._namenode = namenode

    def _launch(self, program: list[str]) -> None:
        self._configure(
            {
                "fs.defaultFS": self._namenode.url,
                "dfs.datanode.data.dir": (self.data_dir / "data").as_uri(),
                "dfs.datanode.address": f"{HOST}:{self._ports[_DATA]}",
                "dfs.datanode.ipc.address": f"{HOST}:{self._ports[_RPC]}",
                "dfs.datanode.http.address": f"{HOST}:{self._ports[_HTTP]}",
            }
        )
        self._wait_ready(program)
