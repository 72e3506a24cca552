"""The sample projects' own tests on real Spark, as a user runs them after cloning one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.test_plugin import DUCKDB, SAMPLE, run_pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.timeout(900)
@pytest.mark.whole
@pytest.mark.parametrize(
    ("project", "tests"), [(SAMPLE, "tests/test_killed.py"), (DUCKDB, "tests/test_duckdb_killed.py")]
)
def test_a_sample_project_passes_its_own_tests_under_kills(
    project: Path, tests: str, add_summary: Callable[[str], None]
) -> None:
    done = run_pytest("-s", tests, cwd=project)
    add_summary("; ".join(line for line in done.stdout.splitlines() if line.startswith("kill_loop:")))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
