"""What the toolkit changes in a Python worker: the data about archives that it keeps, and the address space of its threads."""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import time
import uuid
import zipfile
import zipimport
from typing import TYPE_CHECKING

import pytest

from twopc.integration.spark import worker

if TYPE_CHECKING:
    from pathlib import Path


#: Each producer has a thread for each server, and two more. No server needs to answer.
PRODUCERS = """
import resource
from collections import Counter
from twopc.integration.spark.worker import save_address_space
from twopc.sinks.kafka.client_log import ClientLog
from twopc.sinks.kafka.producer import new_producer

resource.setrlimit(resource.RLIMIT_AS, (768 << 20, 768 << 20))
save_address_space()
made = []
for number in range(4):
    config = {"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "transactional.id": f"t{number}", "log_level": 0}
    made.append(new_producer(config, {}, Counter(), ClientLog())[0])
    for _ in range(3):
        made[-1].poll(0.05)  # its threads allocate memory meanwhile
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc reserves address space for each thread's memory"
)
def test_producers_fit_into_a_limited_address_space() -> None:
    """PySpark sets this limit for `spark.executor.pyspark.memory`. librdkafka aborts the process if it cannot start a thread."""
    done = subprocess.run([sys.executable, "-c", PRODUCERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Archive:
    """A zip file on the path, with a package of modules of unique names; counts how often its directory is read."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.package = f"p{uuid.uuid4().hex}"
        self.read: list[str] = []
        read_directory = zipimport._read_directory  # type: ignore[attr-defined]

        def counted(archive: str) -> object:
            self.read += [archive] if archive == str(path) else []
            return read_directory(archive)

        self.add("__init__")
        self.add("one")
        monkeypatch.setattr(zipimport, "_read_directory", counted)
        monkeypatch.syspath_prepend(str(path))

    def add(self, module: str) -> None:
        with zipfile.ZipFile(self.path, "a") as archive:
            archive.writestr(f"{self.package}/{module}.py", "")

    def has(self, module: str) -> bool:
        return importlib.util.find_spec(f"{self.package}.{module}") is not None

    def begin_task(self) -> int:
        """Do what a worker does before it reads the task's function; return how often the directory was read."""
        self.read.clear()
        importlib.invalidate_caches()
        self.has("nothing")  # newer Python versions read the directory only when a module is looked for
        return len(self.read)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    archive = Archive(tmp_path / "package.jar", monkeypatch)
    importlib.import_module(f"{archive.package}.one")
    later = time.time() + 60
    monkeypatch.setattr("twopc.integration.spark.worker.time.time", lambda: later)  # the file is no longer new
    return archive


def test_without_keep_archives_an_archive_is_read_for_each_task(archive: Archive) -> None:
    assert [archive.begin_task() > 0 for _ in range(3)] == [True, True, True]


def test_an_unchanged_archive_is_read_one_more_time_and_never_again(archive: Archive) -> None:
    worker.keep_archives()
    assert archive.begin_task() > 0  # it may have changed since it was read
    worker.keep_archives()
    assert [archive.begin_task() for _ in range(3)] == [0, 0, 0]


def test_a_changed_archive_is_read_again(archive: Archive) -> None:
    worker.keep_archives()
    archive.begin_task()
    archive.add("two")
    assert archive.begin_task() > 0
    assert archive.has("two")


def test_an_archive_replaced_by_one_of_the_same_age_is_read_again(archive: Archive) -> None:
    worker.keep_archives()
    archive.begin_task()
    previous = archive.path.stat()
    data = archive.path.read_bytes()
    archive.path.unlink()
    archive.path.write_bytes(data)
    os.utime(archive.path, ns=(previous.st_atime_ns, previous.st_mtime_ns))
    assert archive.begin_task() > 0


def test_an_archive_that_has_just_changed_is_read_for_each_task(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twopc.integration.spark.worker.time.time", lambda: archive.path.stat().st_ctime + 1)
    worker.keep_archives()
    assert [archive.begin_task() > 0 for _ in range(3)] == [True, True, True]


def test_an_archive_that_vanishes_raises_no_error(archive: Archive) -> None:
    worker.keep_archives()
    archive.begin_task()
    archive.path.unlink()
    archive.begin_task()
    assert not archive.has("two")


def test_the_loader_of_an_imported_module_is_still_used_to_find_modules(archive: Archive) -> None:
    worker.keep_archives()
    loader = sys.modules[f"{archive.package}.one"].__spec__.loader  # type: ignore[union-attr]
    assert loader in sys.path_importer_cache.values()
    assert type(loader) is worker._Archive
