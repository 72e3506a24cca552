"""Put-if-absent on a local directory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from twopc.files import LocalFiles, Subdirectory

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "a" / "b")


def test_looking_into_a_directory_that_does_not_exist_finds_nothing_and_makes_nothing(files: LocalFiles) -> None:
    assert (files.read("x/y"), files.names(""), files.names("x")) == (None, [], [])
    files.remove("x/y")
    assert not Path(files.location).exists()


def test_the_first_to_put_wins_and_nobody_overwrites(files: LocalFiles) -> None:
    assert files.put_if_absent("x/y", b"first")
    assert not files.put_if_absent("x/y", b"second")
    assert files.read("x/y") == b"first"


def test_names_are_sorted_and_plain(files: LocalFiles) -> None:
    for name in ("x/2", "x/1", "x/10", "top"):
        files.put_if_absent(name, b"")
    assert (files.names("x"), files.names("")) == (["1", "10", "2"], ["top", "x"])


def test_a_removed_name_is_free_again(files: LocalFiles) -> None:
    files.put_if_absent("x", b"1")
    files.remove("x")
    files.remove("x")
    assert files.put_if_absent("x", b"2")


@pytest.mark.parametrize("taken", [False, True])
def test_no_temporary_file_is_left(*, taken: bool, files: LocalFiles) -> None:
    if taken:
        files.put_if_absent("x", b"1")
    files.put_if_absent("x", b"2")
    assert os.listdir(files.location) == ["x"]  # noqa: PTH208 - dot files, too


def test_a_write_that_fails_leaves_neither_the_name_nor_a_temporary_file(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "no space left", descriptor)

    files.put_if_absent("other", b"")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.put_if_absent("x", b"data")
    assert os.listdir(files.location) == ["other"]  # noqa: PTH208


def test_the_file_and_every_directory_on_its_way_are_durable_on_return(
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


def test_of_two_racing_processes_exactly_one_gets_each_name_and_the_file_is_whole(tmp_path: Path) -> None:
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


def test_what_a_killed_writer_left_is_not_the_file_and_is_passed_over(tmp_path: Path) -> None:
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


def test_a_subdirectory_is_the_same_files_by_shorter_names(files: LocalFiles) -> None:
    below = Subdirectory(files, "lineage")
    assert (below.names(""), below.read("x/y")) == ([], None)
    assert below.put_if_absent("x/y", b"1")
    assert not below.put_if_absent("x/y", b"2")
    assert (files.read("lineage/x/y"), below.read("x/y")) == (b"1", b"1")
    assert (below.names(""), below.names("x"), files.names("")) == (["x"], ["y"], ["lineage"])
    below.remove("x/y")
    assert files.names("lineage/x") == []
    assert below.location == f"{files.location}/lineage"
