"""Create a Spark session that gets its Kafka connector as users do: with ``spark.jars.packages``.

Spark also puts these jars on the Python workers' ``sys.path``, unlike jars from ``spark.jars``. This costs every task time. The
session needs no network, because Spark's Ivy finds the jars that ``twopc.integration.services`` has downloaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from pyspark.sql import SparkSession

from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="downloaded"/>
  <resolvers>
    <filesystem name="downloaded">
      <artifact pattern={pattern}/>
    </filesystem>
  </resolvers>
</ivysettings>
"""


@contextlib.contextmanager
def spark_session(
    directory: Path, *, cores: int = 2, jars: Iterable[Path] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[SparkSession]:
    """Yield a local session, and stop it at the end.

    Args:
        directory: the directory for all of Spark's files.
        cores: how many tasks run at the same time.
        jars: additional jars, for ``spark.jars``.
        settings: additional Spark settings.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = Path.cwd()
    os.chdir(directory)  # Spark writes files to the working directory
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for name, value in {**packages(directory), **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
        os.chdir(before)


def packages(directory: Path) -> dict[str, str]:
    """Return the settings that let Spark resolve its Kafka connector from the downloaded jars."""
    jars = spark_kafka_jars()
    root = jars[0].parents[3]
    settings = directory / "ivysettings.xml"
    pattern = f"{root}/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
    settings.write_text(_IVY_SETTINGS.format(pattern=quoteattr(pattern)))
    # The repository does not describe dependencies, so name each jar.
    coordinates = [":".join(jar.relative_to(root).parts[:3]) for jar in jars]
    return {
        "spark.jars.packages": ",".join(coordinates),
        "spark.jars.ivySettings": str(settings),
        "spark.jars.ivy": str(directory / "ivy"),
    }
