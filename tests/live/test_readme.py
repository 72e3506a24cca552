"""The README's commands: they install the package in an empty environment and run the README's example there."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shlex
import uuid
import zipfile
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pytest
from packaging.requirements import Requirement

from tests.live.installing import ROOT, Installed, environment, interpreter, uv
from tests.live.spark_support import processes_of, wait_until
from tests.matrix.__main__ import SPARKS
from tests.reader import committed
from twopc.integration.services import cache_dir
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.jar_sets import NEWEST_CONNECTORS
from twopc.integration.services.java import java_home, trust_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from packaging.specifiers import SpecifierSet

    from tests.live.services import KafkaService

_LOCAL_CLUSTER = "local-cluster[1,1,1024]"


def readme_example() -> str:
    """The first Python block of the README."""
    found = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def readme_commands() -> list[str]:
    """The lines of the README's shell block."""
    found = re.search(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def _readme_installation() -> list[str]:
    """The arguments of the README's first ``pip install``."""
    found = re.search(r"`pip install (.*?)`", (ROOT / "README.md").read_text())
    assert found is not None
    return shlex.split(found[1])


def _readme_connector() -> str:
    """The coordinates of the connector that the README's ``spark-submit`` loads."""
    [line] = [line for line in readme_commands() if line.startswith("spark-submit ")]
    return line.split()[line.split().index("--packages") + 1]


def _bounds(extra: str, package: str) -> SpecifierSet:
    """The versions of a package that an extra of this project accepts."""
    wanted = [Requirement(line) for line in importlib.metadata.requires("spark-twopc") or ()]
    [found] = [
        one.specifier for one in wanted if one.name == package and one.marker and one.marker.evaluate({"extra": extra})
    ]
    return found


@pytest.mark.parametrize("extra", ["spark", "connect"])
def test_an_extra_installs_exactly_the_versions_of_spark_that_have_a_kafka_connector(extra: str) -> None:
    """Without a bound, pip installs the newest Spark, on which the README's example finds no source."""
    bounds = _bounds(extra, "pyspark")
    assert {".".join(one.version.split(".")[:2]) for one in SPARKS if one.version in bounds} == set(NEWEST_CONNECTORS)
    assert "3.0.0" not in _bounds(extra, "pandas")


def test_the_documents_name_the_newest_kafka_connector_of_each_spark() -> None:
    spark, version = max(NEWEST_CONNECTORS.items())
    assert _readme_connector() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
    assert f"installs PySpark {spark}" in " ".join((ROOT / "README.md").read_text().split())
    named = re.findall(r"`_2\.1[23]:([\d.]+)`", (ROOT / "README.md").read_text())
    assert {version, *named} == set(NEWEST_CONNECTORS.values())
    pages = {
        page: re.findall(r"kafka-0-10_2\.1[23]:([\d.]+)", page.read_text()) for page in (ROOT / "docs").glob("*.md")
    }
    assert set(pages[ROOT / "docs" / "deployment.md"]) == set(NEWEST_CONNECTORS.values())
    assert [page for page, found in pages.items() if not set(found) <= set(NEWEST_CONNECTORS.values())] == []


def test_the_readmes_example_is_the_file_in_examples() -> None:
    assert (ROOT / "examples" / "kafka_to_kafka.py").read_text().partition("\n\n")[2] == readme_example()


@pytest.fixture
def as_in_the_readme(tmp_path: Path) -> Installed:
    """An environment in which the README's command has installed the package: the newest versions, without the lock."""
    directory = tmp_path / "env"
    uv("venv", "--python", interpreter(), str(directory))
    uv("pip", "install", "--python", str(directory / "bin" / "python"), *_readme_installation())
    return Installed(directory)


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_the_readmes_commands_run_its_example_on_a_cluster(
    kafka: KafkaService, as_in_the_readme: Installed, tmp_path: Path
) -> None:
    """In a project with its own packages ``sinks`` and ``integration``, beside the script and on the workers."""
    code = "import importlib.metadata as m; print(m.version('pyspark'), m.version('pandas'))"
    spark, pandas = as_in_the_readme("python", "-c", code).stdout.split()
    assert spark.split(".")[:2] == _readme_connector().rpartition(":")[2].split(".")[:2]
    assert pandas in _bounds("spark", "pandas")
    name = f"w{uuid.uuid4().hex[:10]}"
    changed = {
        '"broker:9092"': f'"{kafka.bootstrap_servers}"',
        '"/shared/checkpoints/orders"': f'"{tmp_path / "checkpoint"}"',
        '"subscribe", "orders"': f'"subscribe", "{name}-in"',
        'name="orders"': f'name="{name}"',
        '"orders-enriched"': f'"{name}-out"',
    }
    code = readme_example()
    for old, new in changed.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    script = tmp_path / "orders.py"
    script.write_text("import integration, sinks\nassert integration.of_the_project and sinks.of_the_project\n" + code)
    with zipfile.ZipFile(tmp_path / "project.zip", "w") as project:
        for package in ("integration", "sinks"):
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text("of_the_project = True\n")
            project.write(tmp_path / package / "__init__.py", f"{package}/__init__.py")
    [start, create, produce, _submit, _comment, consume] = readme_commands()
    assert start.startswith("docker compose ")  # the fixture's broker takes its place

    def adapted(line: str) -> str:
        """The command with the test's broker and topics."""
        line = line.replace("127.0.0.1:9092", kafka.bootstrap_servers).replace("orders-enriched", f"{name}-out")
        return re.sub(r"\borders\b", f"{name}-in", line)

    for line in (create, produce):
        done = as_in_the_readme("sh", "-c", adapted(line))
        assert done.returncode == 0, done.stderr
    given = Counter(str(number) for number in range(1, 1001))

    query = _submitted(as_in_the_readme, script, tmp_path)
    session = os.getsid(query.pid)
    try:
        wait_until(
            lambda: (
                query.exit_code is not None
                or committed(kafka.bootstrap_servers, f"{name}-out").total() >= given.total()
            ),
            "the rows are there",
            timeout_s=600,
        )
        assert query.exit_code is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        query.kill()
        for process in processes_of(session):  # the executor and its workers have their own process groups
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert committed(kafka.bootstrap_servers, f"{name}-out") == given
    assert Counter(as_in_the_readme.first_lines(given.total(), adapted(consume))) == given


def _submitted(installed: Installed, script: Path, root: Path) -> GuardedProcess:
    binaries = installed.directory / "bin"
    variables = {"JAVA_HOME": java_home(), "PYSPARK_PYTHON": binaries / "python", "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.jars.ivy": cache_dir() / "readme",  # downloaded once
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join([f"-Dderby.system.home={root}", *trust_arguments()]),
        "spark.local.dir": root,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    unset = [name for name in os.environ if name not in environment()]
    command = ["env", *(argument for name in unset for argument in ("-u", name))]
    command += [f"{name}={value}" for name, value in variables.items()]
    command += [str(binaries / "spark-submit"), "--packages", _readme_connector(), "--master", _LOCAL_CLUSTER]
    command += [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
    command += ["--py-files", str(root / "project.zip")]
    return GuardedProcess([*command, str(script)], log=root / "log", cwd=root)
