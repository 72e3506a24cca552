"""The jars of HDFS, of Hadoop's S3 client and of an S3 server: only tests use them."""

from __future__ import annotations

from pathlib import Path

from twopc.integration.services.ivy import pyspark_jars
from twopc.integration.services.jar_sets import JarSet
from twopc.integration.services.jars import fetch

#: The lock file lists the jars whose classes are really loaded, according to a run with ``-verbose:class``.
_LOCK = Path(__file__).with_name("jars.lock.json")
_SHIPPED = ("hadoop-client-api-*", "hadoop-client-runtime-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*")


def hdfs_jars() -> list[Path]:
    """HDFS 3.4.1 beside the Hadoop client that PySpark ships."""
    shipped = [path for pattern in _SHIPPED for path in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
    return [*fetch(JarSet("hdfs-3.4.1", "HDFS 3.4.1", ()), _LOCK), *shipped]


def s3_client_jars() -> list[Path]:
    """Hadoop's s3a; the modules of the AWS SDK that it uses, 9 MB instead of the bundle's 500."""
    return fetch(JarSet("s3a-3.4.1", "Hadoop's S3 client", ()), _LOCK)


def s3_server_jars() -> list[Path]:
    """S3Proxy."""
    return fetch(JarSet("s3proxy-2.6.0", "S3Proxy 2.6.0", ()), _LOCK)
