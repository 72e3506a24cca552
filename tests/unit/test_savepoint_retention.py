"""Periodic savepoints: the newest are kept; what somebody has asked for, or another query has taken, is never deleted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from integration.operate import create_savepoint, with_savepoints
from integration.operate.manifest import newest_good, savepoints_in
from integration.operate.retention import keep_newest
from tests.unit.test_savepoint import add_batch, checkpoint, put
from twopc.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["checkpoint"]


def _kept(directory: Path) -> list[tuple[str, int]]:
    found = savepoints_in(directory)[0]
    return sorted((one.manifest.query_id, one.manifest.batch_id) for one in found)


def _run(checkpoint: Path, kept: Path, batches: range, **settings: Any) -> None:
    def write(_: object, batch: int) -> None:
        add_batch(checkpoint, batch)

    each = with_savepoints(write, checkpoint_location=str(checkpoint), directory=str(kept), every=1, **settings)
    frame: Any = None
    for batch in batches:
        each(frame, batch)


def test_the_newest_periodic_savepoints_are_kept_and_those_that_were_asked_for(
    checkpoint: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    create_savepoint(checkpoint, kept)  # of batch 3
    _run(checkpoint, kept, range(4, 12), num_retained=2)
    assert _kept(kept) == [("old", 3), ("old", 9), ("old", 10)]
    put(checkpoint / "metadata", '{"id":"new"}')  # as restored: another query
    _run(checkpoint, kept, range(12, 16), num_retained=1)
    assert _kept(kept) == [("new", 14), ("old", 3), ("old", 9), ("old", 10)]
    assert newest_good(kept).manifest.batch_id == 14
    assert not any(path.name.startswith(".") for path in kept.iterdir())


def test_ten_are_kept_unless_it_is_said(checkpoint: Path, tmp_path: Path) -> None:
    _run(checkpoint, tmp_path / "kept", range(4, 18))
    assert [batch for _, batch in _kept(tmp_path / "kept")] == list(range(7, 17))


def test_a_deletion_that_fails_or_is_killed_leaves_whole_savepoints(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "kept"
    _run(checkpoint, kept, range(4, 8))

    def fail(path: Path) -> None:
        (path / "manifest.json").unlink()
        raise OSError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        keep_newest(kept, "old", 1)
    assert "could not be deleted: read-only" in caplog.text
    assert savepoints_in(kept)[1] == []
    assert _kept(kept) == [("old", 6)]


@pytest.mark.parametrize("wrong", [0, -1, True, "3", 2.5])
def test_a_number_that_cannot_be_one_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"num_retained=.*from 1 on"):
        with_savepoints(print, checkpoint_location="/c", num_retained=wrong)
