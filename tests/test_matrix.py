"""A sample of `make matrix`: a query killed four times on the oldest Spark, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.matrix.__main__ import ROOT, SPARKS

OLDEST = SPARKS[0]
PYTHON = "{}.{}".format(*sys.version_info)


@pytest.mark.timeout(900)  # it may have to download that Spark
@pytest.mark.skipif(PYTHON not in OLDEST.pythons, reason=f"Spark {OLDEST.version} runs on Python {OLDEST.pythons}")
def test_the_oldest_spark_is_exactly_once() -> None:
    command = [sys.executable, "-m", "tests.matrix", "--spark", OLDEST.version, "--python", PYTHON]
    done = subprocess.run(
        [*command, "--tests", "tests/live/test_spark_versions.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
