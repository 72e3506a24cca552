"""The sample project's own tests on real Spark, as a user runs them after cloning it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.test_plugin import SAMPLE, run_pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.timeout(900)
@pytest.mark.whole
def test_the_sample_project_passes_its_own_tests_under_kills(
    add_summary: Callable[[str], None],
) -> None:
    done = run_pytest("-s", "tests/test_killed.py", cwd=SAMPLE)
    add_summary("; ".join(line for line in done.stdout.splitlines() if line.startswith("kill_loop:")))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
