"""The number of periodic savepoints that stay, and a process that is killed at any step of deleting one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.operate.support import command
from tests.unit.savepoint_support import saving
from tests.unit.test_savepoint import add_batch, checkpoint, put
from twopc.errors import ConfigurationError
from twopc.integration.operate import Savepoints, create_savepoint
from twopc.integration.operate.manifest import check, newest_good, savepoints_in
from twopc.integration.operate.retention import Retention

if TYPE_CHECKING:
    from twopc.integration.operate.manifest import Savepoint

__all__ = ["checkpoint"]

_ROOT = Path(__file__).parents[2]


def taken(source: Path, kept: Path, count: int) -> list[Savepoint]:
    """Make this number of periodic savepoints, each of a different batch. Return them with the newest first."""
    for batch in range(4, 4 + count):
        add_batch(source, batch)
        create_savepoint(source, kept, is_periodic=True)
    return savepoints_in(kept)[0]


def batches(kept: Path) -> list[int]:
    return [one.manifest.batch_id for one in savepoints_in(kept)[0]]


def test_a_query_keeps_its_newest_savepoints(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    asked = create_savepoint(checkpoint, kept)
    each = saving(
        lambda _, batch: put(checkpoint / "commits" / str(batch), "v1\n{}"),
        checkpoint, directory=str(kept), every=1, num_retained=3,
    )  # fmt: skip
    for batch in range(4, 12):
        add_batch(checkpoint, batch, is_finished=False)
        each(batch)
    assert batches(kept) == [10, 9, 8, asked.manifest.batch_id]  # a user requested the last savepoint
    assert not list(kept.glob(".*"))
    assert newest_good(kept).manifest.batch_id == 10


def test_a_damaged_savepoint_does_not_count(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    five = taken(checkpoint, kept, 5)
    for one, text in ((five[0], "x"), (five[1], None), (five[2], "delta 4")):
        file = one.path / "checkpoint/state/0/0/5.delta"
        assert file.read_text() == "delta 4"
        file.write_text(text) if text else file.unlink()
    (five[2].path / "manifest.json").unlink()
    assert Retention(kept, 1).apply("old") == [five[4].path]
    assert newest_good(kept).path == five[3].path
    assert {one.path.name for one in five[:4]} <= {path.name for path in kept.iterdir()}


def test_a_clock_set_back_does_not_make_the_newest_savepoint_the_oldest(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    taken(checkpoint, kept, 2)
    hour_ago = time.time() - 3_600
    monkeypatch.setattr(time, "time", lambda: hour_ago)
    add_batch(checkpoint, 6)
    newest = create_savepoint(checkpoint, kept, is_periodic=True)
    assert newest_good(kept).path == newest.path
    assert [path.name[:20] for path in Retention(kept, 2).apply("old")] == ["savepoint-0000000004"]
    assert batches(kept) == [6, 5]


def test_the_newest_savepoint_of_the_query_that_ran_last_comes_first(checkpoint: Path, tmp_path: Path) -> None:
    """A query that was restored from a savepoint counts on from there, below the batches of the query before."""
    kept = tmp_path / "kept"
    taken(checkpoint, kept, 3)
    put(checkpoint / "metadata", '{"id":"restored"}')
    for batch in (5, 6):
        (checkpoint / "commits" / str(batch)).unlink()
    add_batch(checkpoint, 5)
    newest = create_savepoint(checkpoint, kept, is_periodic=True)
    assert batches(kept) == [5, 6, 5, 4]
    assert newest_good(kept).path == newest.path


def test_the_last_complete_savepoint_stays_and_so_do_those_of_other_queries(checkpoint: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    three = taken(checkpoint, kept, 3)
    assert Retention(kept, 1).apply("another") == []
    for one in three[:2]:
        (one.path / "checkpoint/metadata").write_text("torn")
    assert Retention(kept, 1).apply("old") == []
    assert newest_good(kept).path == three[2].path


def test_an_invalid_number_of_retained_savepoints_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="num_retained must be 1 or more"):
        Savepoints(num_retained=0)


def test_the_list_says_which_savepoints_are_periodic(checkpoint: Path, tmp_path: Path) -> None:
    taken(checkpoint, tmp_path / "kept", 1)
    listed = command("savepoint", "list", str(tmp_path / "kept"), "--json")
    assert [one["is_periodic"] for one in listed.facts["savepoints"]] == [True]


#: A program that deletes savepoints and is killed at each step.
_KILLED = """
import shutil, sys
from pathlib import Path
from twopc.integration.operate.retention import Retention
from tests.killed_steps import kill_at_each_step

source, root = Path(sys.argv[1]), Path(sys.argv[2])
root.mkdir()

def act(name):
    shutil.copytree(source, root / name)
    Retention(root / name, 2).apply("old")

for step in kill_at_each_step(("fsync", "rename", "unlink", "rmdir"), act):
    print(step, flush=True)
"""


def test_a_process_killed_during_a_deletion_leaves_good_savepoints_intact(checkpoint: Path, tmp_path: Path) -> None:
    taken(checkpoint, tmp_path / "kept", 4)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, tmp_path / "kept", tmp_path / "killed"],
        cwd=_ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = len(done.stdout.split())
    assert steps > 20
    for step in range(1, steps + 1):
        directory = tmp_path / "killed" / f"at-{step}"
        found, problems = savepoints_in(directory)
        assert problems == [] and batches(directory)[:2] == [7, 6]
        for one in found:
            check(one)
        Retention(directory, 2).apply("old")  # the next deletion completes the interrupted one
        assert [path.name for path in sorted(directory.iterdir())] == sorted(one.path.name for one in found[:2])
