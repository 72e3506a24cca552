"""Put-if-absent in a local directory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from twopc.files import LocalFiles

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "a" / "b")


def test_reading_from_a_missing_directory_finds_nothing_and_creates_nothing(files: LocalFiles) -> None:
    assert (files.read("x/y"), files.names(""), files.names("x")) == (None, [], [])
    files.remove("x/y")
    assert not Path(files.location).exists()


def test_the_first_put_wins_and_is_never_overwritten(files: LocalFiles) -> None:
    assert files.put_if_absent("x/y", b"first")
    assert not files.put_if_absent("x/y", b"second")
    assert files.read("x/y") == b"first"


def test_names_are_sorted(files: LocalFiles) -> None:
    for name in ("x/2", "x/1", "x/10", "top"):
        files.put_if_absent(name, b"")
    assert (files.names("x"), files.names("")) == (["1", "10", "2"], ["top", "x"])


def test_a_removed_name_can_be_put_again(files: LocalFiles) -> None:
    files.put_if_absent("x", b"1")
    files.remove("x")
    files.remove("x")
    assert files.put_if_absent("x", b"2")


@pytest.mark.parametrize("taken", [False, True])
def test_put_leaves_no_temporary_file(*, taken: bool, files: LocalFiles) -> None:
    if taken:
        files.put_if_absent("x", b"1")
    files.put_if_absent("x", b"2")
    assert os.listdir(files.location) == ["x"]  # noqa: PTH208 - dot files, too


def test_a_failed_put_leaves_no_file(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "no space left", descriptor)

    files.put_if_absent("other", b"")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.put_if_absent("x", b"data")
    assert os.listdir(files.location) == ["other"]  # noqa: PTH208


def test_the_file_and_its_parent_directories_are_synced_before_put_returns(
    files: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    files.put_if_absent("c/x", b"data")
    directories = [path for path in synced if path.is_dir()]
    assert directories == [tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"]
    assert [path.name.startswith(".x.") for path in synced if not path.is_dir()] == [True]


def _put_many(root: str, mine: bytes, barrier: Barrier, won: multiprocessing.Queue[list[int]]) -> None:
    files = LocalFiles(root)
    barrier.wait(60)
    won.put([i for i in range(200) if files.put_if_absent(f"race/{i}", mine * 1000)])


def test_each_name_goes_to_exactly_one_of_two_racing_processes(tmp_path: Path) -> None:
    barrier = SPAWN.Barrier(2)
    queues: dict[bytes, multiprocessing.Queue[list[int]]] = {b"a": SPAWN.Queue(), b"b": SPAWN.Queue()}
    processes = [
        SPAWN.Process(target=_put_many, args=(str(tmp_path), mine, barrier, queue)) for mine, queue in queues.items()
    ]
    for process in processes:
        process.start()
    won = {mine: queue.get(timeout=60) for mine, queue in queues.items()}
    for process in processes:
        process.join(60)
    assert sorted(won[b"a"] + won[b"b"]) == list(range(200))
    files = LocalFiles(tmp_path)
    assert len(files.names("race")) == 200
    for mine, names in won.items():
        assert all(files.read(f"race/{i}") == mine * 1000 for i in names)


def _put_and_die(root: str) -> None:
    def die(descriptor: int) -> None:
        del descriptor
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = die  # type: ignore[assignment]
    LocalFiles(root).put_if_absent("x/y", b"half")


def test_the_leftover_of_a_killed_writer_is_ignored(tmp_path: Path) -> None:
    LocalFiles(tmp_path).put_if_absent("x/other", b"")
    process = SPAWN.Process(target=_put_and_die, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(list((tmp_path / "x").iterdir())) == 2  # the leftover is there
    files = LocalFiles(tmp_path)
    assert (files.names("x"), files.read("x/y")) == (["other"], None)
    assert files.put_if_absent("x/y", b"whole")
    assert files.read("x/y") == b"whole"
