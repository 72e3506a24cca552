"""List the sets of jars that this project's servers and tests need, with their versions."""

from __future__ import annotations

import importlib.metadata
import json
import re
from dataclasses import dataclass
from pathlib import Path

from twopc.integration.services.ivy import pyspark_jars

DEFAULT_KAFKA_VERSION = "4.3.0"
#: The versions that `make matrix` runs, and 2.8.2, which is rejected.
LOCKED_KAFKA_VERSIONS = ("2.8.2", "3.0.2", "3.3.2", "3.5.2", "3.9.1", "4.0.1", "4.1.1", "4.2.0", DEFAULT_KAFKA_VERSION)
HBASE_VERSION = "2.6.1"
ICEBERG_VERSION = "1.10.0"
#: The release of Delta for Spark 4.0.
DELTA_VERSION = "4.0.0"
#: For each minor version of Spark, the newest patch release whose Kafka connector every repository serves. Later patch
#: releases use that connector, too.
NEWEST_CONNECTORS = {"3.5": "3.5.7", "4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
POSTGRES_JDBC_VERSION = "42.7.7"
#: The last 0.10 release. Pipelines migrate from this version.
OLD_KAFKA_VERSION = "0.10.2.2"


@dataclass(frozen=True)
class JarSet:
    """A set of jars whose versions are resolved together.

    Attributes:
        name: the set's directory in the cache, and its key in the lock file.
        title: the set's name in messages.
        coordinates: the root modules, each as "organisation:module:revision".
        excluded: modules to leave out, because the program that uses the set already has them.
        forced: dependencies whose revision differs from the revision that other modules ask for.
        transitive: whether the set includes the roots' dependencies.
    """

    name: str
    title: str
    coordinates: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    forced: tuple[str, ...] = ()
    transitive: bool = True


def kafka_set(version: str) -> JarSet:
    """Return the class path of a Kafka broker."""
    # Kafka is compiled against SLF4J 1.7, but does not depend on a binding, without which the broker would log nothing.
    roots = (f"org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-reload4j:1.7.36")
    return JarSet(f"kafka-{version}", f"Kafka {version}", roots)


def spark_kafka_set() -> JarSet:
    """Return Spark's Kafka connector for the installed PySpark, without the jars that PySpark ships."""
    matches = (re.match(r"(.+?)-\d[^-]*.*\.jar$", jar.name) for jar in pyspark_jars().glob("*.jar"))
    shipped = frozenset(match[1] for match in matches if match)
    version = connector_version(importlib.metadata.version("pyspark"))
    scala = "_2.12" if "spark-core_2.12" in shipped else "_2.13"
    return JarSet(
        f"spark-kafka-{version}",
        f"Spark {version} Kafka connector",
        (f"org.apache.spark:spark-sql-kafka-0-10{scala}:{version}",),
        shipped,
        # Repositories do not serve the token provider for most later versions of Spark, but those versions can use this
        # one.
        () if version.startswith("3.") else (f"org.apache.spark:spark-token-provider-kafka-0-10{scala}:4.0.0",),
    )


def connector_version(spark: str) -> str:
    """Return the Kafka connector's version for a Spark version.

    The connector has Spark's version or, if repositories do not serve that version, the newest version that they serve.
    """
    newest = NEWEST_CONNECTORS.get(".".join(spark.split(".")[:2]), spark)
    return min(spark, newest, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def hbase_set() -> JarSet:
    """Return the class path of HBase: master, region server and ZooKeeper."""
    # These are the jars that a small HBase loads: 59 MB instead of 110 MB with all dependencies.
    roots = tuple(json.loads(Path(__file__).with_name("hbase.jars.json").read_text()))
    return JarSet(f"hbase-{HBASE_VERSION}", f"HBase {HBASE_VERSION}", roots, transitive=False)


def postgres_jdbc_set() -> JarSet:
    """Return the PostgreSQL JDBC driver, for Spark's own writer."""
    roots = (f"org.postgresql:postgresql:{POSTGRES_JDBC_VERSION}",)
    title = f"PostgreSQL {POSTGRES_JDBC_VERSION} JDBC driver"
    return JarSet(f"postgres-jdbc-{POSTGRES_JDBC_VERSION}", title, roots, transitive=False)


def mirror_set() -> JarSet:
    """Return the class path of MirrorMaker 2."""
    roots = (
        f"org.apache.kafka:connect-mirror:{DEFAULT_KAFKA_VERSION}",
        f"org.apache.kafka:connect-runtime:{DEFAULT_KAFKA_VERSION}",
        "org.slf4j:slf4j-reload4j:1.7.36",
    )
    return JarSet(f"mirror-{DEFAULT_KAFKA_VERSION}", f"Kafka {DEFAULT_KAFKA_VERSION} MirrorMaker", roots)


def old_kafka_set() -> JarSet:
    """Return the class path of Kafka 0.10 and of its ZooKeeper. The dependencies include an SLF4J binding."""
    # Kafka 0.10 was built for Java 8, which still included the package javax.xml.bind.
    roots = (f"org.apache.kafka:kafka_2.11:{OLD_KAFKA_VERSION}", "javax.xml.bind:jaxb-api:2.3.1")
    return JarSet(f"kafka-{OLD_KAFKA_VERSION}", f"Kafka {OLD_KAFKA_VERSION}", roots)


def iceberg_set() -> JarSet:
    """Return the class path of the Iceberg REST catalog, which is part of Iceberg's tests."""
    iceberg, jetty = (f"org.apache.iceberg:iceberg-core:{ICEBERG_VERSION}", "org.eclipse.jetty:jetty-{}:11.0.26")
    roots = (iceberg, f"{iceberg}:tests", jetty.format("server"), jetty.format("servlet"), "org.slf4j:slf4j-nop:2.0.17")
    return JarSet(f"iceberg-{ICEBERG_VERSION}", f"Iceberg {ICEBERG_VERSION} REST catalog", roots)


def spark_iceberg_set() -> JarSet:
    """Return the Iceberg reader and writer for the installed PySpark, in one jar."""
    minor = ".".join(importlib.metadata.version("pyspark").split(".")[:2])
    root = f"org.apache.iceberg:iceberg-spark-runtime-{minor}_{'2.12' if minor < '4' else '2.13'}:{ICEBERG_VERSION}"
    return JarSet(
        f"spark-iceberg-{minor}-{ICEBERG_VERSION}",
        f"Iceberg {ICEBERG_VERSION} for Spark {minor}",
        (root,),
        transitive=False,
    )


def spark_delta_set() -> JarSet:
    """Return the Delta Lake reader and writer for Spark 4.0, without the libraries that PySpark ships."""
    roots = tuple(f"io.delta:{module}:{DELTA_VERSION}" for module in ("delta-spark_2.13", "delta-storage"))
    return JarSet(f"delta-spark-{DELTA_VERSION}", f"Delta Lake {DELTA_VERSION}", roots, transitive=False)
