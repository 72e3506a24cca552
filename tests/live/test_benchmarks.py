"""The benchmark runs from its command line, counts what it has written, and keeps results that its pages can show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measured import TWOPC, read_results
from benchmarks.pages import filled

_ROOT = Path(__file__).parents[2]
#: One case of each kind: queries that take turns in Spark, a query with its own plan, a client, and a driver without Spark, with
#: the broker's own counts.
_CASES = {
    "streaming": "streaming:2000rows",
    "rows": "rows:100rows",
    "skew": "skew:one slow",
    "write": "write",
    "redis": "redis:SET",
    "postgres": "postgres:append",
    "past": "past",
}


@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_a_quick_run_covers_each_kind_of_case(tmp_path: Path) -> None:
    chosen = [word for case in _CASES.values() for word in ("--only", case)]
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1", "--results", str(tmp_path), *chosen]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {group: read_results(tmp_path, group) for group in _CASES}
    for group, results in found.items():
        assert results is not None and results.cases and not results.missing, group
        for case in results.cases:
            assert len(case.samples) > 1 or group == "past", case.name
            assert case.counted[TWOPC] > 0
    assert "requests per batch" in found["rows"].cases[0].facts  # type: ignore[union-attr]
    assert (tmp_path / "past.svg").exists()
    page = "".join(f"<!-- bench:{group} -->\n<!-- /bench -->\n" for group in (*_CASES, "goals"))
    assert "Not measured yet" not in filled(page, tmp_path)
