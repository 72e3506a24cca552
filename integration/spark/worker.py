"""Adapt Spark's Python workers: cache the directory of each imported archive between tasks, and save address space.

Each task begins with ``importlib.invalidate_caches()`` (``pyspark.worker_util.setup_spark_files``). Python then rereads the
directory of each archive on the path, once for every package that it imports from the archive. These reads take 70 to 300 ms
per task. The archives are Spark's ``pyspark.zip`` and each jar of ``spark.jars.packages``, which Spark also puts on the path.

``spark.executor.pyspark.memory`` limits a worker's address space, not the memory that it uses. glibc reserves 64 MiB of address
space for the memory of each new thread, up to 8 times the number of cores. A store's client has several threads: librdkafka
starts one for each broker, and aborts the process if it cannot start a thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from contextlib import suppress
from functools import cache
from typing import Final
from zipimport import zipimporter

#: A file that changed less than this long ago may change again without a new timestamp.
_TOO_NEW_S: Final = 2.0
_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_ARENAS: Final = 2


def keep_archives() -> None:
    """Make Python reread an archive on the path only after the archive has changed, and not for each task.

    Repeated calls are harmless.
    """
    for finder in list(sys.path_importer_cache.values()):
        if type(finder) is zipimporter:
            # Keep the finder object, because imported modules use it as their loader.
            finder.__class__ = _Archive


@cache
def save_address_space() -> None:
    """If this process's address space is limited, let its threads share two arenas of memory instead of one arena each.

    Call this function before a client starts its threads. C libraries other than glibc do not reserve memory for each thread.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


class _Archive(zipimporter):
    _read: tuple[int, ...] | None = None  # the archive's file attributes just before its directory was read

    def invalidate_caches(self) -> None:
        """Read the directory again, unless the archive is known to be unchanged since the last read."""
        now = _stamp(self.archive)
        if now is None or now != self._read:
            super().invalidate_caches()
        self._read = now


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - zipimporter passes strings
    except OSError:
        return None
    if time.time() - found.st_ctime < _TOO_NEW_S:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
