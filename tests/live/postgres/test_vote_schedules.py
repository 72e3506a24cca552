"""`vote="prepared"` under random schedules of several drivers and faults. `TWOPC_VOTE_SEEDS=1000:1100` runs these seeds."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.postgres.schedules import Schedule, faulty
from tests.live.postgres.support import left_behind, run
from tests.live.postgres.votes import no_vote_is_left, votes
from twopc.testing.contract.drivers import close_opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import psycopg

__all__ = ["no_vote_is_left"]

_STEPS = 8
_GIVEN = os.environ.get("TWOPC_VOTE_SEEDS")


@pytest.mark.parametrize("number", range(*map(int, (_GIVEN or "0:2").split(":"))))
def test_under_random_faults_each_batch_is_visible_once_and_no_vote_is_left(
    number: int,
    database: str,
    connection: psycopg.Connection[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    add_summary: Callable[[str], None],
) -> None:
    seed = number if _GIVEN else 2 * secrets.randbits(30) + number  # one even seed and one odd seed
    add_summary(f"TWOPC_VOTE_SEEDS={seed}:{seed + 1}")
    # With an odd seed, there is no unique index. So each start may change the vote, and a duplicate row would be visible.
    may_change = seed % 2 == 1
    run(connection, f"CREATE TABLE target (value bigint {'' if may_change else 'UNIQUE'})")
    schedule = Schedule(random.Random(seed), database, tmp_path, may_change=may_change)
    try:
        with faulty(schedule, monkeypatch):
            for _ in range(_STEPS):
                schedule.step()
            schedule.finish()
        assert (votes(connection), left_behind(database)["slice"]) == ([], 0)
    finally:
        print(f"TWOPC_VOTE_SEEDS={seed}:{seed + 1}", *schedule.log, sep="\n")  # noqa: T201 - pytest shows it if the test fails
        with contextlib.suppress(Exception):
            close_opened()
