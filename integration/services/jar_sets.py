"""Which jars the local servers and Spark's Kafka connector need, as Maven coordinates."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from integration.services.hbase_coordinates import HBASE_COORDINATES, HBASE_VERSION
from integration.services.ivy import pyspark_jars

DEFAULT_KAFKA_VERSION = "4.3.0"
LOCKED_KAFKA_VERSIONS = (DEFAULT_KAFKA_VERSION, "3.9.1")


@dataclass(frozen=True)
class JarSet:
    """Jars that are resolved together.

    Attributes:
        name: directory name in the cache, key in the lock file.
        title: name in messages.
        coordinates: the roots, each "organisation:module:revision".
        excluded: names of modules to leave out, because the user of the set already has them.
        transitive: whether the dependencies of the roots belong to the set.
    """

    name: str
    title: str
    coordinates: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    transitive: bool = True


def kafka_set(version: str) -> JarSet:
    """Return the class path of a Kafka broker."""
    # Kafka is compiled against SLF4J 1.7 and depends on no binding: without one the broker logs nothing.
    roots = (f"org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-reload4j:1.7.36")
    return JarSet(f"kafka-{version}", f"Kafka {version}", roots)


def spark_kafka_set() -> JarSet:
    """Return Spark's Kafka connector for the installed PySpark, without the jars that PySpark ships.

    Raises:
        ServiceError: PySpark is not installed.
    """
    shipped = (re.match(r"(.+?)-\d[^-]*.*\.jar$", jar.name) for jar in pyspark_jars().glob("*.jar"))
    version = importlib.metadata.version("pyspark")
    return JarSet(
        f"spark-kafka-{version}",
        f"Spark {version} Kafka connector",
        (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",),
        frozenset(match[1] for match in shipped if match),
    )


def hbase_set() -> JarSet:
    """Return the class path of HBase: master, region server and ZooKeeper."""
    return JarSet(f"hbase-{HBASE_VERSION}", f"HBase {HBASE_VERSION}", HBASE_COORDINATES, transitive=False)
