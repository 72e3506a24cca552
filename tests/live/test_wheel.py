"""The wheel in an otherwise empty environment: its contents, its errors about missing extras, and the README's example."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import uuid
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Producer

import twopc
from tests.live.pipeline import create_topic
from tests.live.spark_support import processes_of, wait_until
from tests.reader import committed
from twopc.integration.services.guard import GuardedProcess
from twopc.integration.services.jars import spark_kafka_jars
from twopc.integration.services.java import java_home

if TYPE_CHECKING:
    from tests.live.services import KafkaService

_ROOT = Path(__file__).parents[2]
_LOCAL_CLUSTER = "local-cluster[1,1,1024]"
_ROWS = 500


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and some extras, and without anything from this environment or source tree."""

    directory: Path

    def __call__(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.directory / "bin" / command[0]), *command[1:]],
            cwd=self.directory,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def error(self, code: str) -> str:
        """The last line of Python's error message."""
        done = self("python", "-c", code)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.strip().splitlines()[-1]


def _environment() -> dict[str, str]:
    foreign = ("PYTHON", "PYSPARK", "SPARK_", "VIRTUAL_ENV", "UV_", "TWOPC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _uv(*arguments: str, environment: Path | None = None) -> None:
    uv = shutil.which(_ROOT / ".uv" / "bin" / "uv") or shutil.which("uv")
    if uv is None:
        pytest.skip("needs uv: make setup")
    variables = {"UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    if environment is not None:
        variables["UV_PROJECT_ENVIRONMENT"] = str(environment)
    done = subprocess.run(
        [uv, *arguments], cwd=_ROOT, env=_environment() | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _installed(wheel: Path, directory: Path, *extras: str) -> Installed:
    """Install the locked versions of the wheel's dependencies, then the wheel; its metadata must agree with them."""
    chosen = [argument for extra in extras for argument in ("--extra", extra)]
    if "spark" in extras:  # the lock has several, which groups choose
        chosen += ["--group", "spark-4-0"]
    interpreter = ("--python", getattr(sys, "_base_executable", sys.executable))
    _uv("sync", "--locked", "--no-default-groups", "--no-install-project", *interpreter, *chosen, environment=directory)
    python = ("--python", str(directory / "bin" / "python"))
    _uv("pip", "install", "--offline", "--no-deps", *python, str(wheel))
    _uv("pip", "check", *python)
    return Installed(directory)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    _uv("build", "--wheel", "--out-dir", str(directory))
    [built] = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment without extras."""
    return _installed(wheel, tmp_path_factory.mktemp("base") / "env")


def test_the_wheel_contains_one_package_without_tests_and_servers(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    meta = f"spark_twopc-{twopc.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"twopc", meta}
    assert {"twopc/py.typed"} | {f"{meta}/licenses/LICENSE"} <= set(names)
    assert {Path(name).suffix for name in names if not name.startswith(meta)} <= {".py", ".typed", ".json"}


def test_the_protocol_and_the_kafka_sink_need_no_extra(base: Installed) -> None:
    code = (
        "import twopc, twopc.sinks.kafka.committer, twopc.sinks.kafka.decision_log; from twopc import *\n"
        "from twopc.sinks.kafka import KafkaSink; KafkaSink(name='orders', bootstrap_servers='127.0.0.1:1', topic='t')\n"
        "print(twopc.__version__, twopc.__file__)"
    )
    done = base("python", "-c", code)
    assert done.returncode == 0, done.stderr
    version, place = done.stdout.split()
    assert version == twopc.__version__
    assert Path(place).is_relative_to(base.directory)


@pytest.mark.parametrize(
    ("module", "name", "package", "extra"),
    [
        ("twopc.sinks.redis", "RedisSink", "redis", "redis"),
        ("twopc.sinks.hbase", "HBaseSink", "hbasedriver", "hbase"),
        ("twopc.sinks.delta", "DeltaSink", "deltalake", "delta"),
        ("twopc.integration.spark", "exactly_once", "pyspark", "spark"),
    ],
)
def test_a_missing_extra_is_reported_with_the_command_that_installs_it(
    base: Installed, module: str, name: str, package: str, extra: str
) -> None:
    assert base.error(f"from {module} import {name}") == (
        f"ModuleNotFoundError: {module} needs the {package!r} package, which is not installed. Run: pip install "
        f"'spark-twopc[{extra}]'"
    )


def test_the_command_reports_its_missing_extra(base: Installed) -> None:
    done = base("twopc", "verify", "--help")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'spark-twopc[verify]'" in done.stderr


@pytest.mark.whole
def test_verify_needs_only_its_own_extra(wheel: Path, tmp_path: Path) -> None:
    installed = _installed(wheel, tmp_path / "env", "verify")
    assert "--bootstrap-servers" in installed("twopc", "verify", "--help").stdout
    done = installed("twopc", "verify", "--bootstrap-servers", "127.0.0.1:1", "--sink", "orders", "--timeout", "1")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "twopc verify: " in done.stderr, done.stderr


def readme_example() -> str:
    """The first Python block of the README."""
    found = re.search(r"^```python\n(.*?)^```$", (_ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_readmes_example_is_the_file_in_examples() -> None:
    assert (_ROOT / "examples" / "kafka_to_kafka.py").read_text().partition("\n\n")[2] == readme_example()


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_the_readmes_example_runs_from_the_wheel_on_a_cluster(kafka: KafkaService, wheel: Path, tmp_path: Path) -> None:
    """In a project with its own packages ``sinks`` and ``integration``, beside the script and on the workers."""
    installed = _installed(wheel, tmp_path / "env", "spark")
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
    given = Counter(f"order-{number}" for number in range(_ROWS))
    create_topic(kafka.bootstrap_servers, f"{name}-in")
    create_topic(kafka.bootstrap_servers, f"{name}-out")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for value in given:
        producer.produce(f"{name}-in", value)
    producer.flush()

    query = _submitted(installed, script, tmp_path)
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


def _submitted(installed: Installed, script: Path, root: Path) -> GuardedProcess:
    binaries = installed.directory / "bin"
    variables = {"JAVA_HOME": java_home(), "PYSPARK_PYTHON": binaries / "python", "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={root}",
        "spark.local.dir": root,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    unset = [name for name in os.environ if name not in _environment()]
    command = ["env", *(argument for name in unset for argument in ("-u", name))]
    command += [f"{name}={value}" for name, value in variables.items()]
    command += [str(binaries / "spark-submit"), "--master", _LOCAL_CLUSTER]
    command += [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
    command += ["--py-files", str(root / "project.zip")]
    return GuardedProcess([*command, str(script)], log=root / "log", cwd=root)
