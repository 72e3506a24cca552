"""The digest of the toolkit's code: equal for a checkout, a wheel and an archive, and different for different code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from py_compile import compile as compile_file

import pytest

import twopc
from twopc.errors import ConfigurationError
from twopc.integration.migrate import rest
from twopc.integration.migrate.handover import Handover, Kind
from twopc.integration.spark.installed import HERE, digest_of
from twopc.sinks.kafka import KafkaSink

CHECKOUT = Path(twopc.__path__[0])
PRINT = "from twopc.integration.spark.installed import HERE; print(HERE.version, HERE.digest, HERE.place)"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The package as a wheel installs it: one directory without links."""
    return Path(shutil.copytree(CHECKOUT, tmp_path / "site" / "twopc", ignore=shutil.ignore_patterns("__pycache__")))


def zipped(package: Path) -> Path:
    archive = package.parent.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as written:
        for file in package.rglob("*.py"):
            written.write(file, file.relative_to(package.parent))
    return archive


def imported_from(path: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", PRINT], cwd=path.parent, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode().split()


def test_a_checkout_a_wheel_and_an_archive_have_one_digest(wheel: Path) -> None:
    archive = zipped(wheel)
    expected = [HERE.version, HERE.digest]
    assert HERE.place == str(CHECKOUT) and HERE.digest
    assert imported_from(wheel.parent) == [*expected, str(wheel)]
    assert imported_from(archive) == [*expected, f"{archive}/twopc"]


def test_line_endings_do_not_count(wheel: Path) -> None:
    for file in wheel.rglob("*.py"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert digest_of(wheel) == HERE.digest


@pytest.mark.parametrize(
    "file",
    [
        "codec.py",
        "sinks/redis/mappings.py",
        "integration/spark/zones.py",
        "integration/migrate/identity.py",
        "integration/verify/expressions.py",
        "integration/topic_reader.py",
    ],
)
def test_each_file_that_a_task_may_run_counts(wheel: Path, file: str) -> None:
    (wheel / file).write_text((wheel / file).read_text() + "\n")
    assert digest_of(wheel) != HERE.digest


def test_a_moved_file_counts(wheel: Path) -> None:
    (wheel / "sinks/redis").rename(wheel / "sinks/redit")
    assert digest_of(wheel) != HERE.digest


def test_tools_that_no_task_runs_do_not_count(wheel: Path) -> None:
    shutil.rmtree(wheel / "testing")
    (wheel / "integration/cli.py").unlink()
    assert digest_of(wheel) == HERE.digest


def test_without_source_code_only_versions_are_compared(wheel: Path) -> None:
    for file in wheel.rglob("*.py"):
        compile_file(str(file), str(file.with_suffix(".pyc")))
        file.unlink()
    version, place = imported_from(wheel.parent)  # the digest is empty
    assert (version, place, digest_of(wheel)) == (HERE.version, str(wheel), "")
    compiled = replace(HERE, digest="", place=place)
    HERE.require_same(compiled, "driver")
    compiled.require_same(HERE, "driver")
    with pytest.raises(ConfigurationError, match="The driver runs version 9"):
        HERE.require_same(replace(compiled, version="9"), "driver")


def test_code_that_is_installed_later_does_not_count(wheel: Path) -> None:
    """`pip install -U` under a running query: this process has imported the old code."""
    code = f"from twopc.integration.spark import installed; open({str(wheel / 'codec.py')!r}, 'a').write('#'); {PRINT}"
    environment = {**os.environ, "PYTHONPATH": str(wheel.parent)}
    done = subprocess.run([sys.executable, "-c", code], cwd=wheel, env=environment, capture_output=True, check=True)
    assert done.stdout.decode().split()[1] == HERE.digest != digest_of(wheel)


def test_a_worker_with_other_code_compares_no_rows_of_a_half_written_batch() -> None:
    """`twopc migrate`: if it found other identities, rows would be written twice or never."""
    other = replace(HERE, digest="0123456789ab")
    handover = Handover(query_id="", batch_id=0, offsets=(), kind=Kind.REST, topics={})
    sink = KafkaSink(name="orders", bootstrap_servers="nowhere:1", topic="orders")
    with pytest.raises(ConfigurationError, match="the driver and a Python process"):
        next(rest._read([], sink=sink, handover=handover, driver=other))
    with pytest.raises(ConfigurationError, match="the driver and a Python process"):
        rest._identity(b"a", written=("value",), topic="orders", handover=handover, driver=other)
