"""The planted bugs still fit the code, and the model and the unit tests still catch some of them."""

from __future__ import annotations

import ast
import os
import random
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.planted.__main__ import ALL_SKIPPED, NOTHING_RAN, ROOT, caught_by, copy_tree, plant, rule_tests
from tests.planted.bug import one_edit
from tests.planted.bugs import BUGS, QUICK, Bug

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: The number of bugs in the sample, which consists of bugs that the model soon catches. ``python -m tests.planted``
#: tries all bugs on every tier.
SAMPLES = 3
#: The same for bugs that a unit test catches.
UNIT_SAMPLES = 20
#: This file runs the published contract tests.
CONTRACT = "tests/contract/test_contract.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planted")
    copy_tree(root)
    return root


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_code_and_some_tier_covers_it(bug: Bug, tree: Path) -> None:
    kept = {edit.path: (tree / edit.path).read_text() for edit in bug.edits}
    plant(bug, tree)
    for path, text in kept.items():
        changed = (tree / path).read_text()
        assert changed != text
        compile(changed, path, "exec")
        (tree / path).write_text(text)
    assert bug.model or bug.protocol or bug.whole or rule_tests(bug)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_tests_that_catch_a_planted_bug_exist(bug: Bug) -> None:
    """A reference to a renamed test would stop the run of all bugs after an hour."""
    for tier in (bug.protocol, bug.whole):
        files, _, keyword = tier.partition(" -k ")
        found: set[str] = set()
        for path, _, name in (argument.partition("::") for argument in files.split()):
            tests, ids = names_in(path)
            named = name.split("::")[-1].split("[")[0]
            assert not named or named in tests, tier
            found |= tests | ids
        assert not keyword or any(keyword in one for one in found), tier


@cache
def names_in(path: str) -> tuple[set[str], set[str]]:
    """The names of a file's tests, and its strings, which include the ids of parameters."""
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
    tests = {node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    if path == CONTRACT:
        for part in (ROOT / "twopc/testing/contract").glob("*.py"):
            tests |= names_in(str(part.relative_to(ROOT)))[0]
    return tests, {text.value for text in texts if isinstance(text.value, str)}


def test_a_model_that_fails_before_its_first_history_catches_nothing() -> None:
    main = "def main() -> int:\n"
    bug = one_edit("a broken model", 0, "tests/model/__main__.py", main, f"{main}    raise KeyError(0)\n")
    assert caught_by(bug, ("model",), histories=1, seed=1) == NOTHING_RAN


@pytest.mark.parametrize(
    "skip", ["pytest.skip({!r}, allow_module_level=True)", "pytestmark = pytest.mark.skipif(True, reason={!r})"]
)
def test_tests_that_this_machine_skips_show_nothing(skip: str) -> None:
    file, begins = "tests/unit/test_kill_plan.py", "GOOD: dict[str, Any] = {\n"
    skipping = skip.format("this store has no history")
    bug = one_edit("skipped", 0, file, begins, f"{skipping}\n{begins}", protocol=file, model=False)
    assert caught_by(bug, ("protocol",), histories=0, seed=1) == ALL_SKIPPED


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.whole) for share in range(1, SAMPLES))])
def test_the_model_catches_a_planted_bug(share: int, add_summary: Callable[[str], None]) -> None:
    """One bug of each third; ``TWOPC_SEED`` chooses it, and is random by default."""
    seed = chosen_seed()
    name = random.Random(seed).choice(QUICK[share::SAMPLES])
    (bug,) = [bug for bug in BUGS if bug.name == name]
    add_summary(f"{name}, TWOPC_SEED={seed}")
    assert caught_by(bug, ("model",), histories=6_000, seed=seed) == "model", f"{bug.name}, TWOPC_SEED={seed}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "share", [0, *(pytest.param(share, marks=pytest.mark.whole) for share in range(1, UNIT_SAMPLES))]
)
def test_unit_tests_catch_a_planted_bug_and_pass_without_it(share: int, add_summary: Callable[[str], None]) -> None:
    """One of the bugs that need no server; ``TWOPC_SEED`` chooses it, and is random by default.

    A bug does not count if this machine skips all of its tests.
    """
    seed = chosen_seed()
    bugs = [bug for bug in BUGS if is_for_unit_tests(bug)][share::UNIT_SAMPLES]
    random.Random(seed).shuffle(bugs)
    for bug in bugs:
        control = caught_by(replace(bug, edits=()), ("protocol",), 0, seed, timeout_s=300)
        if control != ALL_SKIPPED:
            break
    add_summary(f"{bug.name}, TWOPC_SEED={seed}")
    caught = [control, caught_by(bug, ("protocol",), 0, seed, timeout_s=300)]
    assert caught == [None, "protocol"], f"{bug.name}, TWOPC_SEED={seed}"


def chosen_seed() -> int:
    return int(os.environ.get("TWOPC_SEED", str(random.SystemRandom().randrange(1 << 30))))


def is_for_unit_tests(bug: Bug) -> bool:
    files = bug.protocol.partition(" -k ")[0].split()
    return bool(files) and all(file.startswith("tests/unit/") for file in files)
