"""The example that users copy works as its text says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_EXAMPLE = Path(__file__).parents[2] / "examples" / "odd_even_sums.py"
_NUMBERS = 1200
_TIMEOUT_S = 280


@pytest.mark.whole
def test_every_sink_of_the_example_contains_the_correct_sums_after_a_kill() -> None:
    command = [sys.executable, str(_EXAMPLE), "--numbers", str(_NUMBERS), "--kills", "1", "--seed", "3"]
    wide = {**os.environ, "COLUMNS": "200"}  # keeps each row of the table on one line
    done = subprocess.run(
        command, cwd=_EXAMPLE.parents[1], env=wide, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # A row contains the name, the even and odd sums from exactly_once, and the same two sums from a plain foreachBatch.
    rows = {cells[0]: tuple(cells[1:3]) for line in done.stdout.splitlines() if len(cells := _cells(line)) == 5}
    truth = f"{sum(range(2, _NUMBERS + 1, 2)):,}", f"{sum(range(1, _NUMBERS + 1, 2)):,}"
    sinks = ("Redis, totals (upserts)", "Redis, increments", "HBase, totals (upserts)", "Kafka, events added up")
    assert {name: rows[name] for name in ("the truth", *sinks)} == dict.fromkeys(("the truth", *sinks), truth)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
