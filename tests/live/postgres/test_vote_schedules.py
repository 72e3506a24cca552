"""`vote="prepared"` under random schedules of several drivers and faults. `TWOPC_VOTE_SEEDS=1000:1100` runs other seeds."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.postgres.schedules import Schedule, faulty
from tests.live.postgres.support import left_behind, run
from tests.live.postgres.votes import no_vote_is_left, votes
from twopc.testing.contract.drivers import close_opened

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

__all__ = ["no_vote_is_left"]

_STEPS = 8
_SEEDS = range(*map(int, os.environ.get("TWOPC_VOTE_SEEDS", "0:1").split(":")))


@pytest.mark.parametrize("seed", _SEEDS)
def test_under_random_faults_each_batch_is_visible_once_and_no_vote_is_left(
    seed: int, database: str, connection: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_change = (
        seed % 2 == 1
    )  # without a unique index, each start may change the vote, and a duplicate row would be visible
    run(connection, f"CREATE TABLE target (value bigint {'' if may_change else 'UNIQUE'})")
    schedule = Schedule(random.Random(seed), database, tmp_path, may_change=may_change)
    try:
        with faulty(schedule, monkeypatch):
            for _ in range(_STEPS):
                schedule.step()
            schedule.finish()
        assert (votes(connection), left_behind(database)["slice"]) == ([], 0)
    finally:
        print(f"seed {seed}", *schedule.log, sep="\n")  # noqa: T201 - pytest shows it if the test fails
        with contextlib.suppress(Exception):
            close_opened()
