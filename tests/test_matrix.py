"""Samples of `make matrix`: a query killed on the oldest Spark, in a separate environment, and a rule on an older Kafka."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix.__main__ import KAFKAS, ROOT, SPARKS, cells, parser
from twopc.integration.services.jar_sets import LOCKED_KAFKA_VERSIONS
from twopc.integration.spark.foreach_batch import _PROVEN_SPARKS

OLDEST = SPARKS[0]
PYTHON = "{}.{}".format(*sys.version_info)


@pytest.mark.whole
@pytest.mark.timeout(900)  # the test may have to download that Spark
@pytest.mark.skipif(PYTHON not in OLDEST.pythons, reason=f"Spark {OLDEST.version} runs on Python {OLDEST.pythons}")
def test_a_query_on_the_oldest_spark_writes_rows_exactly_once() -> None:
    tests = "tests/live/test_spark_versions.py -m whole -k v1-rows-points0"
    done = run("--spark", OLDEST.version, "--python", PYTHON, "--tests", tests)
    assert "1 passed" in done


@pytest.mark.whole
@pytest.mark.timeout(900)  # the test may have to download that Kafka
def test_a_rule_holds_on_an_older_kafka() -> None:
    """This test runs one of them; `make matrix` runs every rule on every version."""
    done = run("--kafka", "3.9.1", "--tests", "tests/live/rules/test_rule_03_confirm_before_deciding.py")
    assert "Kafka 3.9.1: " in done
    assert " passed" in done


@pytest.mark.parametrize(
    ("arguments", "titles"),
    [
        ([], ["Spark 4.1.4, Python 3.10", "Spark 4.1.4, Python 3.10, Connect"]),
        (["--connect"], ["Spark 4.1.4, Python 3.10, Connect"]),
        (["--tests", "tests/live/rules"], ["Spark 4.1.4, Python 3.10"]),
    ],
)
def test_each_spark_version_has_the_expected_cells_for_connect(
    arguments: list[str], titles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.matrix.__main__.environment", lambda *_: "python")
    options = parser().parse_args(["--spark", "4.1", "--python", "3.10", *arguments])
    found = list(cells(options))
    assert [cell.title for cell in found] == titles
    assert all(Path(test).exists() for cell in found for test in cell.tests if test.endswith(".py"))


def test_connect_runs_on_exactly_the_versions_of_spark_that_have_its_packages() -> None:
    groups = (ROOT / "pyproject.toml").read_text()
    assert {spark.group for spark in SPARKS if spark.connect} == set(
        re.findall(r'^(spark-\S+) = \["pyspark\[connect,', groups, re.MULTILINE)
    )


def test_every_spark_of_the_matrix_is_proven_and_documented() -> None:
    minor = tuple(".".join(spark.version.split(".")[:2]) for spark in SPARKS)
    assert minor == _PROVEN_SPARKS
    assert [spark.version for spark in SPARKS if spark.version not in (ROOT / "docs/testing.md").read_text()] == []
    assert [version for version in minor if version not in (ROOT / "README.md").read_text()] == []
    groups = (ROOT / "pyproject.toml").read_text()
    assert [
        spark for spark in SPARKS if not re.search(rf'{spark.group} = \["pyspark\[[a-z,]+\]=={spark.version}', groups)
    ] == []


def test_every_kafka_of_the_matrix_is_locked_and_documented() -> None:
    versions = {kafka.partition(",")[0] for kafka in KAFKAS}
    assert versions <= set(LOCKED_KAFKA_VERSIONS)
    page = (ROOT / "docs/brokers.md").read_text()
    assert [version for version in versions if f"| {version}" not in page] == []


def run(*arguments: str) -> str:
    """The output of `make matrix`; every test must pass."""
    command = [sys.executable, "-m", "tests.matrix", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout
