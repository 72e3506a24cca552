"""A few trials of each step; ``make chaos TRIALS=300`` runs many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.__main__ import plan, replayed
from twopc.attempt import Attempt
from twopc.crash_points import OCCASIONAL, POINTS

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, ATTEMPT = 3, Attempt(1, 2)
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_no_row_is_lost_or_duplicated_and_no_batch_is_torn_if_processes_are_killed_at_every_step(
    add_summary: Callable[[str], None],
) -> None:
    """``TWOPC_TRIALS`` sets the number of trials per step. Prints the table, the seed and the bound."""
    command = [sys.executable, "-m", "tests.chaos", "--trials", os.environ.get("TWOPC_TRIALS", "1")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    add_summary(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert " 0 queries broken" in done.stdout


def test_a_seed_or_an_artifact_replays_the_same_faults(tmp_path: Path) -> None:
    games, same, other = (plan((*POINTS, *OCCASIONAL), 3, seed, "here:1", "/somewhere") for seed in (7, 7, 8))
    assert games == same
    assert [game.trials for game in games] != [game.trials for game in other]
    assert games[1].query.shuffled
    for game in games:
        artifact = tmp_path / "artifact.json"
        artifact.write_text(json.dumps(game.given()))
        again = replayed(artifact, "there:1", "/elsewhere")
        assert (again.trials, again.seed) == (game.trials, game.seed)
        assert again.query.split(BATCH, ATTEMPT) == game.query.split(BATCH, ATTEMPT)
        assert (again.query.bootstrap_servers, again.query.directory) == ("there:1", "/elsewhere")
