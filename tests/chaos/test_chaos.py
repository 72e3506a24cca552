"""Some trials of each step; ``make chaos TRIALS=300`` for many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_processes_killed_at_every_step_lose_double_and_tear_nothing(tell: Callable[[str], None]) -> None:
    """``TWOPC_TRIALS`` says how many for each step. The table, the seed and the bound are printed."""
    command = [sys.executable, "-m", "tests.chaos", "--trials", os.environ.get("TWOPC_TRIALS", "1")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tell(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert " 0 queries broken" in done.stdout
