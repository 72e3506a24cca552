"""The demo's streaming query, a process of its own so that it can be killed: Kafka to Kafka, all input there is.

``python -m integration.demo.query SPEC`` with a :class:`QuerySpec` as JSON.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from twopc.testing import crash_points

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class QuerySpec:
    """What one run of the query does.

    Attributes:
        bootstrap_servers: the broker.
        source: the topic it reads.
        output: the topic it writes.
        checkpoint: the checkpoint's directory, the same over all runs.
        exactly_once: whether it writes through this toolkit, else through Spark's own Kafka sink.
        batch_rows: ``maxOffsetsPerTrigger``.
        shuffle: the number of tasks to repartition by key into, 0 for none.
        scratch: a directory for everything temporary.
        java_home: the Java to run on.
        jvm_flags: the driver's; they matter, as every kill starts Spark again.
        fault: the crash point of this run. Driver and Python workers all arm it, and it fires only in those that
            pass it: ``driver.*`` in the driver, ``task.*`` in the workers.
    """

    bootstrap_servers: str
    source: str
    output: str
    checkpoint: str
    exactly_once: bool
    batch_rows: int
    shuffle: int
    scratch: str
    java_home: str
    jvm_flags: str
    fault: str = ""

    def command(self) -> list[str]:
        """The command line that runs it."""
        return [sys.executable, "-m", __spec__.name, msgspec.json.encode(asdict(self)).decode()]

    def environment(self) -> dict[str, str]:
        """The process's environment, without the user's own Spark settings: the result must not depend on them."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        return {
            **inherited,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "JAVA_HOME": self.java_home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": self.scratch,
            crash_points.VARIABLE: self.fault,
        }


def run(spec: QuerySpec) -> None:
    """Process all input that is there now, then return."""
    session = _session(spec)
    frame = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", spec.bootstrap_servers)
        .option("subscribe", spec.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", spec.batch_rows)
        .load()
        .select("key", "value")
    )
    if spec.shuffle:
        frame = frame.repartition(spec.shuffle, "key")
    writer = frame.writeStream.option("checkpointLocation", spec.checkpoint).trigger(availableNow=True)
    if spec.exactly_once:
        from integration.spark import exactly_once  # noqa: PLC0415 - only this sink needs it
        from sinks.kafka import KafkaSink  # noqa: PLC0415 - the same

        sink = KafkaSink(name="demo", bootstrap_servers=spec.bootstrap_servers, topic=spec.output)
        writer = writer.foreachBatch(exactly_once(sink, checkpoint_location=spec.checkpoint))
    else:
        writer = (
            writer.format("kafka")
            .option("kafka.bootstrap.servers", spec.bootstrap_servers)
            .option("topic", spec.output)
        )
    writer.start().awaitTermination()
    session.stop()


def _session(spec: QuerySpec) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - its gateway must not start before the environment is right

    from integration.services.jars import spark_kafka_jars  # noqa: PLC0415 - the same

    settings = {
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{spec.jvm_flags} -Djava.io.tmpdir={spec.scratch}",
        "spark.local.dir": spec.scratch,
        "spark.sql.warehouse.dir": f"{spec.scratch}/warehouse",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": crash_points.DAEMON_MODULE,
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("twopc-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def main() -> None:
    """Run what the command line says."""
    spec = msgspec.json.decode(sys.argv[1], type=QuerySpec)
    environment = spec.environment()
    os.environ.clear()
    os.environ.update(environment)
    crash_points.arm_from_environment()
    run(spec)


if __name__ == "__main__":
    main()
