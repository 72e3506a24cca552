"""The floor that is quick enough for thousands: the product's own code on a simulated cluster, network and clock."""

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
    """In a process of its own: the simulation takes clients and clock away from the product's modules."""
    command = [sys.executable, "-m", "tests.model", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_history_loses_doubles_or_tears_anything(tell: Callable[[str], None]) -> None:
    """``TWOPC_HISTORIES`` says how many."""
    done = run_model("--histories", os.environ.get("TWOPC_HISTORIES", "5000"))
    tell(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 violations" in done.stdout


def test_a_seed_plays_the_same_history_again() -> None:
    played = [run_model("--seed", "7000", "--histories", "50", "--processes", "1").stdout for _ in range(2)]
    crash_points = [[line for line in text.splitlines() if line.startswith("faults: ")] for text in played]
    assert crash_points[0] == crash_points[1]
    assert len(crash_points[0]) == 1
