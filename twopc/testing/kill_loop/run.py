"""Define a run of the query under test."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from twopc.integration.services.class_data import driver_flags
from twopc.testing import crash_points
from twopc.testing.kill_loop.kills import Kill  # noqa: TC001 - msgspec reads annotations at run time
from twopc.testing.kill_loop.records import Reader  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the query.

    Attributes:
        reader: how to read the source.
        target: ``module:name`` of the user's function, or the path of its pickle.
        is_query: whether the function returns a ``DataStreamWriter``. If not, it is a ``foreachBatch`` function.
        checkpoint: the checkpoint, which is the same directory for all runs.
        scratch: a directory for temporary files.
        spark: settings of the session.
        java_home: the directory of the Java installation to use.
        path: the directories from which the driver and its workers import Python modules.
        kill: the planned kill; None for the last run.
        reached: the file that is written when the moment of the kill has come.
        server: the address of the Spark Connect server; "" for a classic session.
    """

    reader: Reader
    target: str
    is_query: bool
    checkpoint: str
    scratch: str
    spark: dict[str, str]
    java_home: str
    path: list[str]
    kill: Kill | None
    reached: str
    server: str = ""

    def command(self) -> list[str]:
        """Return the command line of the run."""
        return [sys.executable, "-m", "twopc.testing.kill_loop", self._encoded]

    def server_command(self, ready: str) -> list[str]:
        """Return the command line of a Spark Connect server for the run. The server writes its port to the file ``ready``."""
        return [sys.executable, "-m", "twopc.testing.kill_loop.serve", self._encoded, ready]

    @property
    def _encoded(self) -> str:
        return msgspec.json.encode(asdict(self)).decode()

    def environment(self) -> dict[str, str]:
        """Return the process's environment."""
        return {
            **spark_environment(self.java_home),
            "PYTHONPATH": os.pathsep.join(self.path),
            "TMPDIR": self.scratch,
            crash_points.VARIABLE: self.kill.fault if self.kill else "",
        }


def entered(argument: str) -> Run:
    """Decode the command-line argument, and set up this process with the run's import path and environment."""
    run = msgspec.json.decode(argument, type=Run)
    sys.path[:] = run.path
    environment = run.environment()
    os.environ.clear()
    os.environ.update(environment)
    return run


def spark_environment(java_home: str) -> dict[str, str]:
    """Return this process's environment without the user's Spark settings, so that no result depends on them."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **inherited,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "JAVA_HOME": java_home,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def pickled(function: Callable[..., Any], directory: Path) -> str:
    """Pickle a function by value, because another process cannot import a test module by name. Return the path."""
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")  # PySpark's module has no types
    module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)
    try:
        content = cloudpickle.dumps(function)
    finally:
        if module is not None:
            cloudpickle.unregister_pickle_by_value(module)
    path = directory / "function.pickle"
    path.write_bytes(content)
    return str(path)


def settings(directory: Path) -> dict[str, str]:
    """Return the settings of a local Spark session that keeps all its files in one directory."""
    return {
        "spark.master": "local[2]",
        "spark.app.name": "kill_loop",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{driver_flags()} -Djava.io.tmpdir={directory} -Dderby.system.home={directory}",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": crash_points.DAEMON_MODULE,
    }
