"""The wheel in an otherwise empty environment: its contents, and its errors about missing extras."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import twopc
from tests.live.installing import Installed, interpreter, uv


def _installed(wheel: Path, directory: Path, *extras: str) -> Installed:
    """Install the locked versions of the wheel's dependencies, then the wheel; its metadata must agree with them."""
    chosen = [argument for extra in extras for argument in ("--extra", extra)]
    chosen += ["--python", interpreter()]
    uv("sync", "--locked", "--no-default-groups", "--no-install-project", *chosen, target=directory)
    python = ("--python", str(directory / "bin" / "python"))
    uv("pip", "install", "--offline", "--no-deps", *python, str(wheel))
    uv("pip", "check", *python)
    return Installed(directory)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--out-dir", str(directory))
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
