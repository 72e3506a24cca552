"""``python -m tests.matrix``: run tests of the Kafka sink, kills under Spark included, on each supported Spark, Python and Kafka.

Each pair of Spark and Python has its own environment in ``.matrix/``, from the versions in ``uv.lock``. Exit status 1
when a test fails.
"""

# ruff: noqa: T201 - a command-line program

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
#: Tests with file sources, which every Spark version supports.
_FILES: Final = (
    "tests/live/test_spark_several.py",
    "tests/live/test_spark_versions.py",
    "tests/live/test_spark_budget.py",
    "tests/live/test_spark_callers.py",
    "tests/live/test_spark_stateful.py",
    "tests/live/test_spark_selects.py",
    "tests/live/test_spark_zones.py",
)
#: Tests with Kafka sources; drivers and workers are killed.
_KAFKA: Final = (
    "tests/live/test_spark_kills.py",
    "tests/live/test_spark_recovery.py",
    "tests/live/test_spark_input.py",
    "tests/live/test_spark_direct_frame.py",
    "tests/live/test_spark_many_tasks.py",
)
#: Tests in which the function's process dies at each step of a batch, and in which servers and clients die.
_CONNECT: Final = (
    "tests/live/test_connect.py",
    "tests/live/test_connect_server.py",
    "tests/live/test_connect_executors.py",
    "tests/live/test_kill_loop_connect.py",
    *("-m", "whole or not whole"),
)
_PYTEST: Final = ("-m", "pytest", "-q")
#: Deprecations in another version of Spark are not a fault here.
_LENIENT: Final = ("-o", "filterwarnings=default")


@dataclass(frozen=True)
class Spark:
    """A version of Spark: its dependency group in pyproject.toml, and the oldest and the newest Python that run it.

    ``connect``: the tests under Spark Connect; empty if the group does not contain what they need.
    ``without``: the extras that exclude this version.
    """

    version: str
    group: str
    pythons: tuple[str, ...]
    tests: tuple[str, ...] = (*_FILES, *_KAFKA)
    connect: tuple[str, ...] = _CONNECT
    without: tuple[str, ...] = ()


#: The extras that depend on PySpark. They exclude a Spark version without a Kafka connector.
_WITH_SPARK: Final = ("spark", "connect", "demo", "testing", "all")
SPARKS: Final = (
    Spark("3.5.9", "spark-3-5", ("3.10", "3.11"), connect=()),
    Spark("4.0.5", "spark-4-0", ("3.10", "3.13")),
    Spark("4.1.4", "spark-4-1", ("3.10", "3.13")),
    Spark("4.2.1", "spark-4-2", ("3.10", "3.13")),
    # Its Kafka connector is not published in every repository.
    Spark("4.3.0", "spark-4-3", ("3.11", "3.13"), _FILES, connect=(), without=_WITH_SPARK),
)

#: Values of ``TWOPC_KAFKA`` (``integration/services/kafka.py``). From 4.0 on, the default is transaction.version 2.
KAFKAS: Final = (
    "3.0.2",
    "3.3.2",
    "3.5.2",
    "3.9.1",
    "4.0.1",
    "4.1.1",
    "4.2.0",
    "4.3.0",
    "4.3.0,transaction.version=1",
    "4.3.0,transaction.version=0",
)
#: Tests of the rules and of late requests, and a sample of kills under Spark.
_BROKER: Final = ("tests/live/rules", "tests/nemesis", "tests/live/test_spark_kills.py")


@dataclass(frozen=True)
class Cell:
    """One run of pytest."""

    title: str
    interpreter: str | Path
    tests: tuple[str, ...]
    kafka: str | None = None

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run the tests, and capture their output."""
        chosen = {} if self.kafka is None else {"TWOPC_KAFKA": self.kafka}
        command = [self.interpreter, *_PYTEST, *(_LENIENT if self.kafka is None else ()), *self.tests]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **chosen}, capture_output=True, text=True, check=False
        )


def environment(spark: Spark, python: str, uv: str) -> Path:
    """The interpreter of the pair's environment; makes it, or brings it up to date."""
    target = ROOT / ".matrix" / f"{spark.version}-{python}"
    groups = ["--no-default-groups", "--group", "dev", "--group", spark.group]
    without = [argument for extra in spark.without for argument in ("--no-extra", extra)]
    command = [uv, "sync", "--quiet", "--locked", "--all-extras", *without, *groups, "--python", python]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(target)}, check=True)
    return target / "bin" / "python"


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """The runs to make. An option for Spark alone leaves out Kafka, and vice versa; --connect leaves out all other cells."""
    tests = tuple(options.tests.split())
    for spark in SPARKS if options.kafka is None else ():
        for python in spark.pythons:
            if spark.version.startswith(options.spark or "") and python.startswith(options.python or ""):
                interpreter, title = environment(spark, python, options.uv), f"Spark {spark.version}, Python {python}"
                if not options.connect:
                    yield Cell(title, interpreter, tests or spark.tests)
                if spark.connect and (options.connect or not tests):
                    yield Cell(f"{title}, Connect", interpreter, tests or spark.connect)
    for kafka in KAFKAS if not options.connect and options.spark is None and options.python is None else ():
        if kafka.startswith(options.kafka or ""):
            yield Cell(f"Kafka {kafka}", sys.executable, tests or _BROKER, kafka)


def _told(output: str) -> str:
    """Remove the lines of clients that outlive their broker."""
    return "\n".join(line for line in output.splitlines() if "|rdkafka#" not in line)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--spark", help="run only the Spark versions that begin with this, and no Kafka versions")
    parser.add_argument(
        "--python",
        help="run only the Python versions that begin with this, and no Kafka versions; "
        "default: every Python version that each Spark version supports",
    )
    parser.add_argument("--kafka", help="run only the Kafka versions that begin with this, and no Spark versions")
    parser.add_argument(
        "--connect",
        action="store_true",
        help="run only under Spark Connect, with the Spark versions that support it, and no Kafka versions",
    )
    parser.add_argument("--tests", default="", help="arguments for pytest, instead of the tests of each version")
    parser.add_argument("--uv", default=str(ROOT / ".uv/bin/uv"), help="the uv that creates the environments")
    return parser


def main() -> int:
    options = parser().parse_args()
    if options.connect and options.kafka:
        parser().error(
            "--connect and --kafka cannot be combined: --connect runs Spark versions, and --kafka runs no Spark"
        )
    table = Table("on", "tests", "s")
    failed = 0
    for cell in cells(options):
        began = time.monotonic()
        done = cell.run()
        summary = next((line for line in reversed(done.stdout.splitlines()) if " in " in line), "nothing ran")
        if done.returncode != 0:
            failed += 1
            print(_told(done.stdout)[-20_000:], _told(done.stderr)[-5000:], flush=True)
        print(f"{cell.title}: {summary}", flush=True)
        table.add_row(cell.title, summary, f"{time.monotonic() - began:.0f}")
    Console(width=110).print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
