"""The directory next to the checkpoint is tried before anything is written, on file systems that cannot do everything."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import Cluster
from tests.without_links import run_without_links
from twopc.errors import ConfigurationError
from twopc.files import LocalFiles, MemoryFiles
from twopc.tried_files import tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twopc.files import Files

NO_LINKS = (errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EMLINK)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a handful of files."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(mounted)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", mounted], check=True)  # noqa: S607


@pytest.mark.parametrize(
    "make", [lambda path: LocalFiles(path / "twopc"), lambda _: MemoryFiles()], ids=["local", "memory"]
)
def test_a_directory_that_can_do_everything_is_used_unchanged(tmp_path: Path, make: Callable[[Path], Files]) -> None:
    files = make(tmp_path)
    assert tried(files) is files
    assert list(tmp_path.rglob(".*")) == []


def use_without_links(root: str) -> tuple[bool, list[bool], bytes | None, list[str]]:
    files = tried(LocalFiles(root))
    puts = [files.put_if_absent("a/b", b"1"), files.put_if_absent("a/b", b"2")]
    return (
        files.is_atomic,
        puts,
        files.read("a/b"),
        [str(path.relative_to(root)) for path in sorted(Path(root).rglob("*"))],
    )


@pytest.mark.parametrize("number", NO_LINKS, ids=errno.errorcode.get)
def test_a_share_without_hard_links_is_used_like_an_object_store(tmp_path: Path, number: int) -> None:
    found = run_without_links(number, use_without_links, str(tmp_path))
    assert found == (False, [True, False], b"1", ["a", "a/b"])


def decide_without_links(root: str) -> str:
    cluster = Cluster(Path(root))
    with pytest.raises(ConfigurationError) as refused:
        cluster.start(files=tried(LocalFiles(root)))
    return str(refused.value)


def test_decisions_are_not_kept_in_a_place_where_two_drivers_could_both_write_them(tmp_path: Path) -> None:
    """Fails if a file system without links counts as atomic."""
    said = run_without_links(errno.EOPNOTSUPP, decide_without_links, str(tmp_path))
    assert "Nothing was written" in said and "Add a Kafka sink" in said
    assert list(tmp_path.iterdir()) == []


def test_a_full_file_system_is_reported_and_no_file_is_left_behind(small: Path) -> None:
    (small / "filler").write_bytes(bytes(os.statvfs(small).f_bavail * os.statvfs(small).f_frsize))
    with pytest.raises(
        ConfigurationError,
        match=r"small/twopc.*creating a file failed.*No space left.*Nothing was written.*free some space",
    ):
        tried(LocalFiles(small / "twopc"))
    (small / "filler").unlink()
    files = LocalFiles(small / "twopc")
    assert tried(files) is files


def test_a_read_only_file_system_is_reported(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)  # noqa: S607
    with pytest.raises(ConfigurationError, match=r"creating a file failed.*Read-only file system"):
        tried(LocalFiles(small / "twopc"))


@pytest.mark.parametrize("broken", ["overwrites", "forgets", "cannot list"])
def test_a_file_system_that_breaks_the_contract_is_reported(tmp_path: Path, broken: str) -> None:
    class Broken(LocalFiles):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            if broken == "overwrites":
                (tmp_path / name).write_bytes(data)
            return broken != "cannot list" or super().put_if_absent(name, data)

        def names(self, directory: str) -> list[str]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)

    said = {
        "overwrites": "could both decide",
        "forgets": "reading a file failed: the file contains None",
        "cannot list": "listing the directory failed",
    }
    with pytest.raises(ConfigurationError, match=said[broken]):
        tried(Broken(tmp_path))
