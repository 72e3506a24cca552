"""The model tier: the product's own code on a simulated cluster, network and clock, quick enough for thousands of runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def run_model(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, because the simulation replaces clients and clock in the product's modules."""
    command = [sys.executable, "-m", "tests.model", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_history_loses_or_duplicates_a_row_or_tears_a_batch(add_summary: Callable[[str], None]) -> None:
    """``TWOPC_HISTORIES`` sets the number of histories."""
    done = run_model("--histories", os.environ.get("TWOPC_HISTORIES", "800"))
    add_summary(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 violations" in done.stdout


def test_a_seed_always_plays_the_same_history() -> None:
    played = [run_model("--seed", "7000", "--histories", "20", "--processes", "1").stdout for _ in range(2)]
    faults = [[line for line in text.splitlines() if line.startswith("faults: ")] for text in played]
    assert faults[0] == faults[1]
    assert len(faults[0]) == 1
