"""A server of Spark Connect, as a script: ``python connect_server.py <port> '<settings as JSON>'``.

It runs until it is killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from tests.live.spark_query import session

READY = "the server is ready"


def main() -> None:
    session(
        Path.cwd(),
        settings={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.port": sys.argv[1],
            "spark.sql.artifact.isolation.enabled": "true",
            **json.loads(sys.argv[2]),
        },
    )
    print(READY, flush=True)  # noqa: T201 - the parent process reads the output
    threading.Event().wait()


if __name__ == "__main__":
    main()
