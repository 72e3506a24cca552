"""If a directory's sync fails, a written file is there but may not survive a power failure, so it never counts as written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.fake_sink import Cluster, all_rows
from tests.unit.registers_support import claim
from twopc.binding import Binding
from twopc.bound import Bound
from twopc.errors import ConfigurationError, DecisionInDoubtError, RetriableError
from twopc.files import LocalFiles
from twopc.registers import RegisterLog
from twopc.settings import Settings
from twopc.tried_files import tried

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND = Bound(format=1, log="registers", log_identity="i", sinks={"s": {"store": "s"}})
really, really_unlink = os.fsync, Path.unlink


class Disk:
    """Syncs of directories fail for as long as ``is_broken``; those of files succeed. ``failed`` counts.

    With ``turns_read_only``, no file can be removed after a sync has failed, as on ext4 after an aborted journal.
    """

    def __init__(self) -> None:
        self.is_broken = self.turns_read_only = False
        self.number = errno.EIO
        self.failed = 0

    def fsync(self, descriptor: int) -> None:
        if self.is_broken and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.failed += 1
            raise OSError(self.number, os.strerror(self.number))
        really(descriptor)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        if self.is_broken and self.turns_read_only and self.failed:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        really_unlink(path, missing_ok=missing_ok)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: disk.unlink(path, missing_ok=missing_ok))
    return disk


@pytest.mark.parametrize("turns_read_only", [False, True], ids=["writable", "read-only"])
def test_an_unsynced_decision_is_in_doubt_and_a_restart_reads_it(
    cluster: Cluster, disk: Disk, *, turns_read_only: bool
) -> None:
    """Fails if a decision that can be read back counts, although its name may be gone after a power failure."""
    query = cluster.start(settings=Settings(max_attempts=3))
    query.run(0)
    disk.is_broken, disk.turns_read_only = True, turns_read_only
    with pytest.raises(DecisionInDoubtError, match=r"registers/0+2.*Input/output error.*power failure.*[Rr]estart"):
        query.run(1)
    assert cluster.store.visible() == all_rows(0)  # a batch whose decision may be lost is not committed
    disk.is_broken = False
    with pytest.raises(DecisionInDoubtError):
        query.run(1)  # the same driver cannot tell whether batch 1 is decided
    replay = cluster.start()
    replay.run(1)
    assert (cluster.store.visible(), replay.engine.works) == (all_rows(0, 1), [])


def test_no_driver_acquires_a_log_that_does_not_sync(cluster: Cluster, disk: Disk) -> None:
    """Its own record proves that what it reads is durable. Fails if a later driver acts on a decision that may vanish."""
    cluster.start().run(0)
    query = cluster.start()
    disk.is_broken = True
    for _ in range(2):
        with pytest.raises((RetriableError, ConfigurationError), match="Input/output error"):
            query.run(1)
    assert cluster.store.visible() == all_rows(0)
    disk.is_broken = False
    query.run(1)
    assert cluster.store.visible() == all_rows(0, 1)


@pytest.mark.parametrize("write", ["put", "bind", "id"])
def test_an_existing_file_is_synced_before_it_counts(tmp_path: Path, disk: Disk, write: str) -> None:
    """The first try's file was there, but not durable. Fails if the second try finds it and accepts it."""
    files = LocalFiles(tmp_path)
    files.put_if_absent("registers/x", b"")
    binding = Binding(files)
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: files.put_if_absent("registers/y", b"1"),
        "bind": lambda: binding.bind(BOUND, 0),
        "id": lambda: RegisterLog(files).acquire(claim("one")),
    }
    disk.is_broken = True
    for tries in (1, 2):
        with pytest.raises(OSError if write == "put" else RetriableError, match="Input/output error"):
            acts[write]()
        assert disk.failed >= tries
    disk.is_broken = False
    acts[write]()


def test_an_unsynced_new_directory_does_not_count_as_existing(tmp_path: Path, disk: Disk) -> None:
    """Fails if the next try takes it for a durable one, and syncs only its content."""
    files = LocalFiles(tmp_path / "a" / "b")
    disk.is_broken = True
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            files.put_if_absent("c/x", b"")
        assert list(tmp_path.iterdir()) == []
    disk.is_broken = False
    assert files.put_if_absent("c/x", b"")


def test_a_directory_that_cannot_be_synced_for_now_is_refused_at_the_start(tmp_path: Path, disk: Disk) -> None:
    """A file that a new driver finds there, such as a binding, is then durable, no matter who wrote it."""
    files = LocalFiles(tmp_path)
    disk.is_broken = True
    with pytest.raises(ConfigurationError, match=r"creating a file failed.*Input/output error"):
        tried(files)


def test_a_share_that_syncs_no_directory_is_used_like_an_object_store(tmp_path: Path, disk: Disk) -> None:
    disk.is_broken, disk.number = True, errno.EINVAL
    files = tried(LocalFiles(tmp_path / "twopc"))
    assert not files.is_atomic
    assert [files.put_if_absent("a/b", b"1"), files.put_if_absent("a/b", b"2")] == [True, False]
    disk.number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        files.put_if_absent("a/c", b"1")
