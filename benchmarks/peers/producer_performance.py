"""Run Kafka's own ``ProducerPerformance`` tool (Java), with all records in one transaction."""

from __future__ import annotations

import re
import subprocess
import uuid
from typing import Final

from benchmarks.measured import MissingError
from benchmarks.peers.jars import KAFKA_TOOLS, peer_jars
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION
from twopc.integration.services.jars import kafka_jars
from twopc.integration.services.java import java_command

NAME: Final = "Kafka's ProducerPerformance, transactional"
#: The same tool with librdkafka's default batch.size; Java's default is 16 KiB.
LARGE_BATCHES: Final = f"{NAME}, batch.size=1000000"
_MAIN: Final = "org.apache.kafka.tools.ProducerPerformance"
_ONE_TRANSACTION_MS: Final = "600000"
_TIMEOUT_S: Final = 600


def run(bootstrap_servers: str, topic: str, rows: int, value_bytes: int, *properties: str) -> float:
    """Write records of random letters. Return the records per second that the tool reports, which excludes the JVM's start.

    Args:
        bootstrap_servers: the broker's address.
        topic: an empty topic.
        rows: the number of records.
        value_bytes: the size of each value, in bytes.
        properties: properties for the tool's producer, as ``name=value``. All others have Kafka's defaults.

    Raises:
        MissingError: the tool cannot be downloaded or run.
    """
    jars = [*kafka_jars(DEFAULT_KAFKA_VERSION), *peer_jars(KAFKA_TOOLS)]
    options = ["--topic", topic, "--num-records", str(rows), "--record-size", str(value_bytes), "--throughput", "-1"]
    transaction = ["--transactional-id", uuid.uuid4().hex, "--transaction-duration-ms", _ONE_TRANSACTION_MS]
    command = [str(java_command()), "-Xmx512m", "-cp", ":".join(map(str, jars)), _MAIN, *options, *transaction]
    done = subprocess.run(
        [*command, "--command-property", f"bootstrap.servers={bootstrap_servers}", *properties],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    rates = re.findall(rf"^{rows} records sent, ([\d.]+) records/sec", done.stdout, re.MULTILINE)
    if done.returncode or not rates:
        raise MissingError(f"{NAME} exited with code {done.returncode}: {done.stdout[-300:]}")
    return float(rates[-1])
