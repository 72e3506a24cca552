"""The sample project's own tests on real Spark, as somebody runs them who has cloned it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.test_plugin import SAMPLE, run_pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.timeout(900)
@pytest.mark.whole
def test_the_sample_sink_is_exactly_once_under_kills_and_a_function_that_appends_is_not(
    tell: Callable[[str], None],
) -> None:
    done = run_pytest("-s", "tests/test_killed.py", cwd=SAMPLE)
    tell("; ".join(line for line in done.stdout.splitlines() if line.startswith("kill_loop:")))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
