"""``python -m tests.matrix``: run tests of the Kafka sink under Spark, kills included, on each supported Spark and Python.

Each pair has an environment of its own in ``.matrix/``, from the versions in ``uv.lock``. Exit status 1 when a test fails.
"""

# ruff: noqa: T201 - a command line

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[2]
#: Sources of files, which every Spark has.
_FILES: Final = ("tests/live/test_spark_several.py", "tests/live/test_spark_versions.py")
#: Sources of Kafka; drivers and workers are killed.
_KAFKA: Final = (
    "tests/live/test_spark_kills.py",
    "tests/live/test_spark_recovery.py",
    "tests/live/test_spark_input.py",
)
#: Deprecations are another Spark's own affair.
_PYTEST: Final = ("-m", "pytest", "-q", "-o", "filterwarnings=default")


@dataclass(frozen=True)
class Spark:
    """A version of Spark: its dependency group in pyproject.toml, the oldest and the newest Python it is run on."""

    version: str
    group: str
    pythons: tuple[str, ...]
    tests: tuple[str, ...] = (*_FILES, *_KAFKA)


SPARKS: Final = (
    Spark("3.5.7", "spark-3-5", ("3.10", "3.11")),
    Spark("4.0.0", "spark-4-0", ("3.10", "3.13")),
    Spark("4.2.0", "spark-4-2", ("3.10", "3.13")),
    # Its Kafka connector is not published everywhere.
    Spark("4.3.0", "spark-4-3", ("3.11", "3.13"), _FILES),
)


def environment(spark: Spark, python: str, uv: str) -> Path:
    """The interpreter of the pair's environment; makes it, or brings it up to date."""
    target = ROOT / ".matrix" / f"{spark.version}-{python}"
    groups = ["--no-default-groups", "--group", "dev", "--group", spark.group]
    command = [uv, "sync", "--quiet", "--locked", "--all-extras", *groups, "--python", python]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(target)}, check=True)
    return target / "bin" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--spark", default="", help="versions that begin with this")
    parser.add_argument("--python", default="", help="versions that begin with this; by default all of each Spark")
    parser.add_argument("--tests", default="", help="for pytest, instead of each Spark's own")
    parser.add_argument("--uv", default=str(ROOT / ".uv/bin/uv"), help="the uv that makes the environments")
    options = parser.parse_args()
    table = Table("Spark", "Python", "tests", "s", title="Spark and Python")
    failed = 0
    for spark in SPARKS:
        for python in spark.pythons:
            if not (spark.version.startswith(options.spark) and python.startswith(options.python)):
                continue
            interpreter = environment(spark, python, options.uv)
            began = time.monotonic()
            tests = options.tests.split() or spark.tests
            done = subprocess.run(
                [interpreter, *_PYTEST, *tests], cwd=ROOT, capture_output=True, text=True, check=False
            )
            summary = next((line for line in reversed(done.stdout.splitlines()) if " in " in line), "nothing ran")
            if done.returncode != 0:
                failed += 1
                print(done.stdout[-20_000:], done.stderr[-5000:], flush=True)
            print(f"Spark {spark.version}, Python {python}: {summary}", flush=True)
            table.add_row(spark.version, python, summary, f"{time.monotonic() - began:.0f}")
    Console(width=110).print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
