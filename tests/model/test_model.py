"""The model tier: the product's own code on a simulated cluster, network and clock, quick enough for thousands of runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.model.nemesis import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
#: With this number of histories, even the rarest fault strikes more than ten times on average.
HISTORIES = 800


def run_model(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in a separate process, because the simulation replaces clients and clock in the product's modules."""
    command = [sys.executable, "-m", "tests.model", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def faults_of(report: str) -> dict[str, int]:
    """The number of faults by kind, from the report's line about them."""
    [line] = re.findall(r"^faults: (.*)$", report, re.MULTILINE)
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", line)}


def test_no_history_loses_or_duplicates_a_row_or_tears_a_batch(add_summary: Callable[[str], None]) -> None:
    """Histories without faults would prove nothing. ``TWOPC_HISTORIES`` sets the number of histories."""
    histories = int(os.environ.get("TWOPC_HISTORIES", HISTORIES))
    done = run_model("--histories", str(histories))
    add_summary(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" {histories} histories, " in done.stdout
    assert " 0 violations" in done.stdout
    struck = faults_of(done.stdout)
    absent = [fault.name for fault in Fault if not struck.get(fault.name)]
    assert not absent or histories < HISTORIES, f"these faults never struck: {absent}"


def test_a_seed_always_plays_the_same_history() -> None:
    one, same = (run_model("--seed", "7000", "--histories", "20", "--processes", "1").stdout for _ in range(2))
    assert faults_of(one) == faults_of(same)
    assert sum(faults_of(one).values()) > 20
