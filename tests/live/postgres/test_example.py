"""The example with Kafka and PostgreSQL: its one decision is exactly once, and the writers that guides show are not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_EXAMPLE = Path(__file__).parents[3] / "examples" / "kafka_and_postgres.py"
_ORDERS = 600
_TIMEOUT_S = 500


@pytest.mark.whole
@pytest.mark.timeout(_TIMEOUT_S + 60)
def test_a_killed_query_duplicates_rows_only_without_a_common_decision() -> None:
    command = [sys.executable, str(_EXAMPLE), "--orders", str(_ORDERS), "--kills", "2", "--seed", "5"]
    wide = {**os.environ, "COLUMNS": "200"}  # keeps each row of the table on one line
    done = subprocess.run(
        command, cwd=_EXAMPLE.parents[1], env=wide, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # query, store, orders, lost, doubled
    rows = {tuple(cells[:2]): cells[2:] for line in done.stdout.splitlines() if len(cells := _cells(line)) == 5}
    assert {store: rows["one-decision", store] for store in ("PostgreSQL", "Kafka")} == {
        "PostgreSQL": [str(_ORDERS), "0", "0"],
        "Kafka": [str(_ORDERS), "0", "0"],
    }
    for store in ("PostgreSQL", "Kafka"):
        _, lost, doubled = rows["as-usual", store]
        assert (lost, int(doubled.replace(",", "")) > 0) == ("0", True)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]
