"""Put-if-absent in a local directory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import Cluster, all_rows
from twopc.errors import ConfigurationError, RefusedStartError
from twopc.files import Files, LocalFiles, MemoryFiles

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "a" / "b")


@pytest.fixture(params=["local", "memory"])
def any_files(request: pytest.FixtureRequest, files: LocalFiles) -> Files:
    return files if request.param == "local" else MemoryFiles()


def test_a_read_from_a_missing_directory_finds_no_file_and_creates_none(any_files: Files) -> None:
    assert (any_files.read("x/y"), any_files.names(""), any_files.names("x")) == (None, [], [])
    any_files.remove("x/y")
    assert not Path(any_files.location).exists()


def test_the_first_put_wins_and_is_never_overwritten(any_files: Files) -> None:
    assert any_files.put_if_absent("x/y", b"first")
    assert not any_files.put_if_absent("x/y", b"second")
    assert any_files.read("x/y") == b"first"
    assert any_files.put_if_absent("x/empty", b"")
    assert not any_files.put_if_absent("x/empty", b"")


def test_names_are_sorted(any_files: Files) -> None:
    for name in ("x/2", "x/1", "x/10", "x/.hidden", "top"):
        any_files.put_if_absent(name, b"")
    assert (any_files.names("x"), any_files.names("")) == (["1", "10", "2"], ["top", "x"])


def test_a_file_can_be_created_again_after_its_removal(any_files: Files) -> None:
    any_files.put_if_absent("x", b"1")
    any_files.remove("x")
    any_files.remove("x")
    assert any_files.put_if_absent("x", b"2")


def test_memory_is_limited_and_the_error_gives_the_sizes_and_an_alternative() -> None:
    memory = MemoryFiles(limit_bytes=10)
    assert memory.put_if_absent("x", b"1234567")
    with pytest.raises(
        ConfigurationError, match=r"y was not written.* would take up 11 bytes, but limit_bytes is 10.*LocalFiles"
    ):
        memory.put_if_absent("y", b"1234")
    assert memory.read("y") is None
    assert memory.put_if_absent("y", b"123")
    with pytest.raises(ConfigurationError, match="limit_bytes=0"):
        MemoryFiles(limit_bytes=0)
    with pytest.raises(ConfigurationError, match="would take up 5,242,881 bytes, but limit_bytes is 5,242,880"):
        MemoryFiles().put_if_absent("x", bytes(5 * 1024 * 1024 + 1))


def test_decisions_that_do_not_fit_into_memory_stop_the_query_and_nothing_is_visible(cluster: Cluster) -> None:
    cluster.files = MemoryFiles(limit_bytes=1000)
    with pytest.raises(ConfigurationError, match="limit_bytes is 1,000"):
        cluster.start().run(0)
    assert cluster.store.visible() == []
    cluster.files = MemoryFiles()
    query = cluster.start()
    query.run(0, 1)
    assert cluster.store.visible() == all_rows(0, 1)
    cluster.files = MemoryFiles()  # as if the process had ended
    with pytest.raises(RefusedStartError, check=lambda error: error.case == "unadopted"):
        cluster.start().run(2)
    assert cluster.store.visible() == all_rows(0, 1)


@pytest.mark.parametrize("taken", [False, True])
def test_a_put_leaves_no_temporary_file_behind(*, taken: bool, files: LocalFiles) -> None:
    if taken:
        files.put_if_absent("x", b"1")
    files.put_if_absent("x", b"2")
    assert os.listdir(files.location) == ["x"]  # noqa: PTH208 - lists dot files, too


def test_a_failed_put_leaves_no_file_behind(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(list((tmp_path / "x").iterdir())) == 2  # the leftover is still there
    files = LocalFiles(tmp_path)
    assert (files.names("x"), files.read("x/y")) == (["other"], None)
    assert files.put_if_absent("x/y", b"whole")
    assert files.read("x/y") == b"whole"
