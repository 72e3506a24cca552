"""The pytest plugin imports nothing heavy until a test uses its fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "examples" / "sink_project"
DUCKDB = ROOT / "examples" / "duckdb_sink"

UNUSED = """
import sys

def test_no_heavy_module_is_imported():
    heavy = {"pyspark", "pyarrow", "confluent_kafka", "kafka", "redis", "psutil", "integration", "sinks"}
    assert not heavy & set(sys.modules)
    assert not [name for name in sys.modules if name.startswith("twopc.testing.") and name != "twopc.testing.plugin"]
"""
USED = """
import pytest
import twopc.testing.kill_loop
from twopc.crash_points import crash_point

def test_a_point_is_armed(crash_points):
    crash_points.arm_from("driver.decided=raise,driver.prepared=raise")
    with pytest.raises(crash_points.InjectedFault):
        crash_point("driver.decided")

def test_no_point_is_left_armed():
    crash_point("driver.prepared")

@pytest.fixture
def called(monkeypatch):
    calls = []
    monkeypatch.setattr(twopc.testing.kill_loop, "kill_loop", lambda *args, **given: calls.append((args, given)))
    return calls

def test_the_command_line_sets_kills_seed_and_connect(called, kill_loop, tmp_path):
    kill_loop(list, query="m:q", kills=3)
    given = {"query": "m:q", "kills": 9, "seed": 5, "connect": True, "directory": tmp_path / "kill_loop"}
    assert called == [((list,), given)]
"""


def run_pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_unused_plugin_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_unused.py").write_text(UNUSED)
    done = run_pytest("-W", "error", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugins_fixtures_and_options_work(tmp_path: Path) -> None:
    (tmp_path / "test_used.py").write_text(USED)
    done = run_pytest("--twopc-seed", "5", "--twopc-kills", "9", "--twopc-connect", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_sample_project_passes_the_contract_suite() -> None:
    done = run_pytest("tests/test_contract.py", cwd=SAMPLE)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_the_duckdb_sink_passes_the_contract_suite() -> None:
    done = run_pytest("tests/test_duckdb_contract.py", cwd=DUCKDB)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.parametrize(
    ("project", "modules"),
    [
        (SAMPLE, {"twopc", "twopc.testing.contract", "twopc.testing.kill_loop"}),
        (DUCKDB, {"twopc", "twopc.testing.contract"}),
    ],
)
def test_a_sample_project_uses_only_the_public_surface(project: Path, modules: set[str]) -> None:
    text = "\n".join(path.read_text() for path in project.rglob("*.py"))
    packages = ("from twopc.testing", "from twopc.integration", "from twopc.sinks", "from twopc import")
    imported = {line.split()[1] for line in text.splitlines() if line.strip().startswith(packages)}
    assert imported == modules
