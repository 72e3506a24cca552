"""Download the peers' jars and verify them against ``jars.lock.json``, as for the local servers.

``python -m benchmarks.peers.jars`` resolves the jars again and rewrites that file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from benchmarks.measured import MissingError
from twopc.integration.services import ServiceError, cache_dir, jar_lock
from twopc.integration.services.jar_sets import DEFAULT_KAFKA_VERSION, JarSet
from twopc.integration.services.jars import fetch

_LOCK: Final = Path(__file__).with_name("jars.lock.json")
#: The connector for the newest Flink release that has one. It also runs on later Flink 2 releases.
FLINK_CONNECTOR: Final = JarSet(
    "flink-sql-connector-kafka-5.0.0-2.2",
    "Flink's Kafka connector",
    ("org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",),
    transitive=False,
)
#: The jars that ``ProducerPerformance`` needs in addition to the broker's jars.
KAFKA_TOOLS: Final = JarSet(
    f"kafka-tools-{DEFAULT_KAFKA_VERSION}",
    "Kafka's tools",
    (f"org.apache.kafka:kafka-tools:{DEFAULT_KAFKA_VERSION}",),
    transitive=False,
)


def peer_jars(wanted: JarSet) -> list[Path]:
    """Return the files in a set of jars.

    Raises:
        MissingError: the files cannot be downloaded.
    """
    try:
        return fetch(wanted, _LOCK)
    except ServiceError as error:
        raise MissingError(f"{wanted.title}: {error}") from error


def write_lock() -> None:
    """Download the sets of jars, and write their checksums to the lock file."""
    _LOCK.unlink(missing_ok=True)
    sums = {}
    for wanted in (FLINK_CONNECTOR, KAFKA_TOOLS):
        peer_jars(wanted)
        sums[wanted.name] = jar_lock.sums_of(cache_dir() / "jars" / wanted.name)
    _LOCK.write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_lock()
