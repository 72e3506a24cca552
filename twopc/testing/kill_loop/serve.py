"""Run a Spark Connect server for the query under test: ``python -m twopc.testing.kill_loop.serve RUN READY``.

The server writes its port to the file READY, and runs until it is killed. The server's Python process outlives the JVM.
When the Python process ends, so do all processes that the JVM left behind.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twopc.testing.kill_loop.run import entered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: PySpark's settings for a server, but with the address 127.0.0.1 and any free port.
_SETTINGS: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def main() -> None:
    """Start the server, and run it until it is killed."""
    run, ready = entered(sys.argv[1]), Path(sys.argv[2])
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Spark's gateway must not start before the environment is set up

    session: SparkSession = SparkSession.builder.config(map={**run.spark, **_SETTINGS}).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - only the JVM knows the port
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    hidden = ready.with_name(f".{ready.name}")
    hidden.write_text(str(service.localPort()))
    hidden.rename(ready)
    threading.Event().wait()


if __name__ == "__main__":
    main()
