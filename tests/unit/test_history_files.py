"""The history's files: they are bounded, torn lines are skipped, and a failed write stops nothing."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.budget import PYTHON, counting_calls
from tests.unit.history_support import ended, failed, write
from tests.unit.objects import Objects
from twopc.files import LocalFiles
from twopc.integration.history import writer
from twopc.integration.history.reader import HistoryError, read
from twopc.integration.history.writer import AppendingWriter, ObjectWriter, writer_for
from twopc.sealed import with_check

if TYPE_CHECKING:
    from pathlib import Path

    from twopc.listeners import Listener


def _directory(checkpoint: Path) -> Path:
    return checkpoint / "twopc" / "history"


def _batches(checkpoint: Path) -> list[int]:
    return [one.batch_id for one in read(checkpoint).checkpoints]


def _append(checkpoint: Path, *batches: int) -> None:
    appending = AppendingWriter(_directory(checkpoint))
    for batch in batches:
        appending.ended(ended(batch))
    appending.close()


def test_written_checkpoints_are_read_back_across_several_runs(tmp_path: Path) -> None:
    _append(tmp_path, 0, 1)
    _append(tmp_path, 2)
    assert read(tmp_path).checkpoints == (ended(0), ended(1), ended(2))
    assert len(list(_directory(tmp_path).iterdir())) == 1


def test_a_torn_last_line_is_skipped_and_reported_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    _append(tmp_path, 0, 1)
    (file,) = _directory(tmp_path).iterdir()
    os.truncate(file, file.stat().st_size - 40)
    assert (_batches(tmp_path), read(tmp_path).skipped) == ([0], (f"{file.name}:2",))
    _append(tmp_path, 2)
    assert (_batches(tmp_path), read(tmp_path).skipped) == ([0, 2], (f"{file.name}:2",))


def test_a_record_written_in_part_is_reported_and_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appending, really = AppendingWriter(_directory(tmp_path)), os.write
    appending.ended(ended(0))
    monkeypatch.setattr(os, "write", lambda descriptor, data: really(descriptor, data[:40]))
    with pytest.raises(OSError, match="only 40 of"):
        appending.ended(ended(1))

    def fail(*_: object) -> int:
        raise OSError("no space")

    monkeypatch.setattr(os, "write", fail)
    for batch in (2, 3):
        with pytest.raises(OSError, match="no space"):
            appending.ended(ended(batch))
    monkeypatch.undo()
    appending.ended(ended(4))
    appending.close()
    assert _batches(tmp_path) == [0, 4]


def test_files_are_rotated_and_the_oldest_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILE_BYTES", 5_000)
    monkeypatch.setattr(writer, "FILES", 3)
    for batch in range(0, 60, 2):
        _append(tmp_path, batch, batch + 1)
    files = list(_directory(tmp_path).iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 5_000 for file in files)
    batches = _batches(tmp_path)
    assert batches == list(range(batches[0], 60))
    assert len(batches) >= 6


def test_recording_a_checkpoint_takes_one_write_and_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("write", "open", "fsync", "fdatasync", "listdir", "scandir", "stat", "unlink"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *a, _name=name, _real=real, **b: (calls.update([_name]), _real(*a, **b))[1]
        )
    appending = AppendingWriter(_directory(tmp_path))
    appending.ended(ended(0))
    assert not calls["fsync"] + calls["fdatasync"]
    calls.clear()
    with counting_calls() as made:
        for batch in range(1, 101):
            appending.ended(ended(batch))
    appending.close()
    assert dict(calls) == {"write": 100}
    assert made[PYTHON] <= 100 * 50  # most of these are the test's own calls


def test_records_keep_their_order_if_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILE_BYTES", 1)
    monkeypatch.setattr("time.time", lambda: 2_000.0)
    _append(tmp_path, 0)
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    _append(tmp_path, 1)
    assert _batches(tmp_path) == [0, 1]


def test_without_append_an_object_contains_many_checkpoints_and_a_failure_is_written_immediately(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(writer, "OBJECT_CHECKPOINTS", 3)
    monkeypatch.setattr(writer, "OBJECTS", 2)
    objects = LocalFiles(tmp_path)
    putting = ObjectWriter(objects)
    for batch in range(4):
        putting.ended(ended(batch))
    assert len(objects.names("history")) == 1
    putting.ended(failed(4, "FatalError", "no"))
    assert [one.batch_id for one in read(tmp_path / "history").checkpoints] == [0, 1, 2, 3, 4]
    putting.ended(ended(4))
    putting.close()
    assert [one.batch_id for one in read(tmp_path / "history").checkpoints] == [3, 4, 4]


def test_a_local_checkpoint_has_a_history_and_any_other_only_on_request(tmp_path: Path) -> None:
    local, objects = LocalFiles(tmp_path), Objects()
    found: list[Listener | None] = [writer_for(local, is_wanted=wanted) for wanted in (None, True, False)]
    assert [type(one).__name__ for one in found] == ["AppendingWriter", "AppendingWriter", "NoneType"]
    found = [writer_for(objects, is_wanted=wanted) for wanted in (None, True, False)]
    assert [type(one).__name__ for one in found] == ["NoneType", "ObjectWriter", "NoneType"]


def test_a_checkpoint_that_is_planned_but_not_finished_is_in_progress(tmp_path: Path) -> None:
    write(tmp_path, [ended(0)])
    for directory, names in {"offsets": ("0", "1", ".1.crc"), "commits": ("0",)}.items():
        (tmp_path / directory).mkdir()
        for name in names:
            (tmp_path / directory / name).touch()
    found = read(tmp_path).in_progress
    assert found is not None
    assert found.batch_id == 1
    (tmp_path / "commits" / "1").touch()
    assert read(tmp_path).in_progress is None


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([b"PAR1 no history", b"\x00\xff\xfe"], "does not contain a history"),
        (
            [with_check(b'{"format":"twopc-history/2","batch":1}')],
            "is in the format twopc-history/2, which this release cannot read",
        ),
        ([], "contains no history|does not contain a history"),
    ],
    ids=["foreign", "newer", "empty"],
)
def test_files_that_are_not_a_history_of_this_release_are_reported(
    lines: list[bytes], says: str, tmp_path: Path
) -> None:
    if not lines:
        _directory(tmp_path).mkdir(parents=True)
        (tmp_path / "metadata").touch()
    else:
        write(tmp_path, lines)
    with pytest.raises(HistoryError, match=says) as error:
        read(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_directory_and_one_without_a_history_give_different_errors(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="is not a directory: pass the query's checkpointLocation"):
        read(tmp_path / "absent")
    with pytest.raises(HistoryError, match="did not write this checkpoint"):
        read(tmp_path)
    (tmp_path / "metadata").touch()
    with pytest.raises(HistoryError, match=r"contains no history\. Either no batch has ended yet"):
        read(tmp_path)


def test_an_unknown_field_of_a_later_release_does_not_matter(tmp_path: Path) -> None:
    known = (
        b'{"format":"twopc-history/1","batch_id":7,"query_id":"q","run_id":"r","status":"completed","triggered_ms":1'
    )
    write(tmp_path, [with_check(known + b',"took_ms":2.5,"colour":"green"}')])
    assert _batches(tmp_path) == [7]
