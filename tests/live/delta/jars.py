"""Delta Lake's own implementation for Spark 4.0: only tests use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twopc.integration.services.jar_sets import JarSet
from twopc.integration.services.jars import fetch

if TYPE_CHECKING:
    from pathlib import Path

_VERSION: Final = "4.0.0"


def delta_jars() -> list[Path]:
    """Delta Lake beside the libraries that PySpark ships."""
    roots = tuple(f"io.delta:{module}:{_VERSION}" for module in ("delta-spark_2.13", "delta-storage"))
    return fetch(JarSet(f"delta-spark-{_VERSION}", f"Delta Lake {_VERSION}", roots, transitive=False))
