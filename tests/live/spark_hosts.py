"""A standalone Spark cluster with two hosts: Spark never starts a speculative copy on the host of the first attempt.

Source: Spark 4.0 ``TaskSetManager.scala`` (``hasAttemptOnHost``). All workers of ``local-cluster`` count as one host.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.live.spark_support import wait_until
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.java import java_home
from twopc.integration.services.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOSTS = ("127.0.0.1", "127.0.0.2")  # both are loopback addresses of this machine
_CLASSES = "org.apache.spark.deploy"


@contextlib.contextmanager
def two_hosts(root: Path) -> Iterator[tuple[str, list[int]]]:
    """Start a master, and a worker with one core on each host; yields the master's URL and the workers' sessions."""
    root.mkdir()
    [port] = free_ports(1)
    url = f"spark://{_HOSTS[0]}:{port}"
    with contextlib.ExitStack() as running:
        log = root / "log"
        address = ["--host", _HOSTS[0], "--port", str(port), "--webui-port", "0"]
        running.callback(_daemon(root, log, "master.Master", address).kill)
        wait_until(lambda: "I have been elected leader" in log.read_text(errors="replace"), f"{log}: a master")
        workers = []
        for host in _HOSTS:
            resources = ["--cores", "1", "--memory", "1g", "--work-dir", str(root / host), "--webui-port", "0"]
            workers.append(_daemon(root, log, "worker.Worker", ["--host", host, *resources, url]))
            running.callback(workers[-1].kill)
        registered = "Successfully registered with master"
        wait_until(lambda: log.read_text(errors="replace").count(registered) == len(_HOSTS), f"{log}: the workers")
        yield url, [os.getsid(worker.pid) for worker in workers]


def _daemon(root: Path, log: Path, name: str, arguments: list[str]) -> GuardedProcess:
    home = Path(pyspark.__file__).parent
    # The daemons report at this level that they are ready.
    (root / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\n"
        "appender.out.type = Console\nappender.out.name = out\n"
    )
    settings = {
        "SPARK_HOME": home,
        "JAVA_HOME": java_home(),
        "SPARK_LOCAL_IP": _HOSTS[0],
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC -Dlog4j2.configurationFile=file:{root}/log4j2.properties",
    }
    environment = [f"{key}={value}" for key, value in settings.items()]
    return GuardedProcess(
        ["env", *environment, str(home / "bin" / "spark-class"), f"{_CLASSES}.{name}", *arguments], log=log, cwd=root
    )
