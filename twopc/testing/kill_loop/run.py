"""What one run of the query under test is given."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass

import msgspec

from twopc.testing import crash_points
from twopc.testing.kill_loop.kills import Kill, Moment
from twopc.testing.kill_loop.records import Reader  # noqa: TC001 - msgspec reads annotations when it runs


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run of the query does.

    Attributes:
        reader: where it reads from.
        target: ``module:name`` of the user's function, or the path of a pickle of it.
        is_query: whether the function makes the writer, else it is what ``foreachBatch`` calls.
        checkpoint: the same directory over all runs.
        scratch: a directory for everything temporary.
        spark: settings of the session.
        java_home: the Java to run on.
        path: what Python imports from, in the driver and its workers.
        kill: when it is killed, None for the last run.
        reached: the file that says that the moment has come.
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

    def command(self) -> list[str]:
        """The command line that runs it."""
        return [sys.executable, "-m", "twopc.testing.kill_loop", msgspec.json.encode(asdict(self)).decode()]

    def environment(self) -> dict[str, str]:
        """The process's environment, without the user's own Spark settings: the result must not depend on them."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        is_point = self.kill is not None and self.kill.moment is Moment.POINT
        return {
            **inherited,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(self.path),
            "JAVA_HOME": self.java_home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": self.scratch,
            crash_points.VARIABLE: f"{self.kill.point}=kill" if self.kill and is_point else "",
        }
