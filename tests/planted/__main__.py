"""``python -m tests.planted``: plant each bug in a copy of the tree and report which tier catches it.

The quickest tier comes first: *model* (simulated, seconds), *protocol* (a real broker), *whole* (real Spark). The exit
status is 1 if no tier catches a bug. Before it plants a bug, it runs each tier on an unchanged copy: a test that fails there
would catch every bug.
"""

# ruff: noqa: T201 - a command-line program

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from tests.model import VIOLATED
from tests.planted.bugs import BUGS, Bug

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).parents[2]
_COPIED: Final = ("twopc", "sinks", "integration", "tests", "docs", "docker-compose.yml", "pyproject.toml")
_TIERS: Final = ("model", "protocol", "whole")
_NOBODY: Final = "NOBODY"
#: The bug's tests could not run, so nothing is known.
NOTHING_RAN: Final = "NOTHING RAN"
#: This machine skips every test of the bug in a tier, and no other tier catches the bug, so nothing is known either.
ALL_SKIPPED: Final = "ALL SKIPPED"
_TIMEOUT_S: Final = 900
#: The exit code of pytest if a test failed. If pytest cannot run or find a test, it exits with another code.
_TEST_FAILED: Final = 1
#: The exit code of pytest if it collected no test, for example because it skipped each module.
_NONE_COLLECTED: Final = 5
#: The number of histories of the control run.
_CONTROL_HISTORIES: Final = 200


def plant(bug: Bug, root: Path) -> None:
    """Plant a bug in the copy of the tree at ``root``.

    Raises:
        ValueError: the text to be replaced does not occur exactly once.
    """
    for edit in bug.edits:
        path = root / edit.path
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(
                f"{bug.name}: {edit.path} contains the text to be replaced {text.count(edit.old)} times:\n{edit.old}"
            )
        path.write_text(text.replace(edit.old, edit.new))


def copy_tree(target: Path) -> None:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "planted")
            )
        else:
            shutil.copy(source, target / name)


def command_of(tier: str, bug: Bug, histories: int, seed: int) -> list[str] | None:
    """The command that runs a tier against a bug; None if the tier does not cover the bug."""
    if tier == "model":
        play = [sys.executable, "-m", "tests.model", "--stop", "--histories", str(histories), "--seed", str(seed)]
        return play if bug.model else None
    tests = bug.whole if tier == "whole" else bug.protocol or ("" if bug.whole else rule_tests(bug))
    return [sys.executable, "-m", "pytest", "-x", "-q", "-m", "whole or not whole", *tests.split()] if tests else None


def rule_tests(bug: Bug) -> str:
    """Every file of the rule: a rule may have several."""
    found = sorted((ROOT / "tests/live/rules").glob(f"test_rule_{bug.rule:02d}_*.py"))
    return " ".join(str(file.relative_to(ROOT)) for file in found)


def caught_by(
    bug: Bug, tiers: Sequence[str], histories: int, seed: int, *, timeout_s: float = _TIMEOUT_S
) -> str | None:
    """The first tier that catches the bug; None if none does. See also the constants above."""
    is_skipped = False
    with tempfile.TemporaryDirectory(prefix="twopc-planted-") as directory:
        root = Path(directory)
        # Without this, processes with another working directory, such as Spark's workers, would import the installed
        # package.
        environment = {**os.environ, "PYTHONPATH": str(root)}
        copy_tree(root)
        plant(bug, root)
        for tier in tiers:
            command = command_of(tier, bug, histories, seed)
            if command is not None:
                try:
                    done = subprocess.run(
                        command, cwd=root, env=environment, capture_output=True, timeout=timeout_s, check=False
                    )
                except subprocess.TimeoutExpired:
                    print(f"{bug.name}: the tier {tier} took more than {timeout_s} s and was skipped", flush=True)
                    continue
                failed = VIOLATED if tier == "model" else _TEST_FAILED
                if tier != "model" and _skipped_all(done):
                    is_skipped = True
                    continue
                if done.returncode not in {0, failed}:
                    said = (done.stdout + done.stderr).decode()[-2000:]
                    print(f"{bug.name}: {command} did not run:\n{said}", flush=True)
                    return NOTHING_RAN
                if done.returncode == failed:
                    return tier
    return ALL_SKIPPED if is_skipped else None


def _skipped_all(done: subprocess.CompletedProcess[bytes]) -> bool:
    """Whether pytest has skipped every test."""
    said = done.stdout
    return done.returncode in {0, _NONE_COLLECTED} and b" skipped" in said and b" passed" not in said


def failing_control(bugs: Sequence[Bug], tiers: Sequence[str], seed: int) -> str | None:
    """Run the tests of one of the bugs in each tier, with nothing planted. Return the first tier that fails nevertheless."""
    for tier in tiers:
        covered = [bug for bug in bugs if command_of(tier, bug, _CONTROL_HISTORIES, seed)]
        if covered:
            bug = replace(random.Random(seed).choice(covered), edits=())
            if caught_by(bug, (tier,), _CONTROL_HISTORIES, seed) not in {None, ALL_SKIPPED}:
                return f"{tier}, with the tests of the bug '{bug.name}'"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--tiers", default=",".join(_TIERS), help="tiers to try, in this order")
    parser.add_argument("--only", default="", help="only bugs whose name contains this")
    parser.add_argument("--skip", type=int, default=0, help="leave out this many bugs, which an earlier run has tried")
    parser.add_argument("--histories", type=int, default=20_000, help="maximum number of model histories per bug")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000_000))
    parser.add_argument("--control", action="store_true", help="plant nothing; a test that fails then is not a catch")
    parser.add_argument("--lanes", type=int, default=1, help="number of bugs to try in parallel")
    options = parser.parse_args()
    table = Table("planted bug", "rule", "caught by", "s", title=f"seed {options.seed}")
    wrong = 0
    bugs = [replace(bug, edits=()) if options.control else bug for bug in BUGS if options.only in bug.name]
    bugs = bugs[options.skip :]
    tiers = options.tiers.split(",")
    if not options.control and (failing := failing_control(bugs, tiers, options.seed)):
        print(f"Without a planted bug, this tier fails: {failing}. So a failure does not show that a bug is caught.")
        return 1

    def judged(bug: Bug) -> tuple[str, str]:
        began = time.monotonic()
        tier = caught_by(bug, tiers, options.histories, options.seed) or _NOBODY
        seconds = f"{time.monotonic() - began:.0f}"
        print(f"{bug.name}: {tier} ({seconds} s)", flush=True)
        return tier, seconds

    with ThreadPoolExecutor(options.lanes) as pool:
        for bug, (tier, seconds) in zip(bugs, pool.map(judged, bugs), strict=True):
            wrong += tier == NOTHING_RAN or (tier != ALL_SKIPPED and (tier == _NOBODY) != options.control)
            table.add_row(bug.name, str(bug.rule or "-"), tier, seconds)
    Console(width=110).print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
