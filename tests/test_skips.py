"""A test that is skipped for a new reason fails the run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import ALLOWED, unknown

ROOT = Path(__file__).parents[1]
_SKIPPED = "import pytest\n\n\ndef test_one():\n    pytest.skip({!r})\n"


@pytest.mark.parametrize(
    ("workers", "reason", "code"), [("0", "this store has no history", 0), ("1", "I was tired", 1)]
)
def test_only_a_new_reason_fails_the_run(workers: str, reason: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text(_SKIPPED.format(reason))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, "-n", workers, str(file)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "1 skipped" in done.stdout, done.stdout + done.stderr
    assert (f"A test was skipped for a new reason: {reason}" in done.stdout) is (code == 1)
    assert done.returncode == code


def test_every_group_of_reasons_is_documented() -> None:
    text = " ".join((ROOT / "docs/testing.md").read_text().split())
    assert [group for group in ALLOWED if group not in text] == []


def test_every_reason_in_the_tests_is_allowed_and_every_pattern_is_needed() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "twopc/testing").rglob("*.py")]
    reasons = {reason for file in files if file != Path(__file__) for reason in reasons_in(file)}
    assert unknown(reasons) == []
    patterns = {pattern for group in ALLOWED.values() for pattern in group}
    for pattern in patterns:
        rest = {name: tuple({*group} - {pattern}) for name, group in ALLOWED.items()}
        assert any(unknown({reason}, rest) for reason in reasons), f"no test has the reason {pattern!r}"


def reasons_in(file: Path) -> set[str]:
    """The reasons in a file's text, with 0 for each value that a test fills in."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pytest.skip", "pytest.mark.skipif"}:
            reason = next((word.value for word in node.keywords if word.arg == "reason"), node.args[0])
            found.add(text_of(reason))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            given = [word.value for word in node.keywords if word.arg == "reason"]
            found.add(text_of(given[0]) if given else f"could not import '{text_of(node.args[0])}'")
    return found


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "0"
