"""Run Spark's Python worker daemon with armed crash points. Set ``spark.python.daemon.module`` to this module's name.

Spark starts ``python -m MODULE pyspark.worker`` and reads the daemon's port from its standard output
(PythonWorkerFactory.scala, pyspark/daemon.py in Spark 4.0). Each worker is a fork of the daemon, so every point is armed again
in each worker. Spark starts another daemon when the environment of the query's Python functions changes.
"""

from __future__ import annotations

from pyspark import daemon

from twopc.testing.crash_points import arm_from_environment

if __name__ == "__main__":
    arm_from_environment()
    daemon.manager()  # type: ignore[no-untyped-call]
