"""Write a directory atomically: fill the directory under a temporary name, make it durable, and then rename it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from twopc.files import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_BLOCK_BYTES: Final = 1 << 20
#: The process that fills a directory holds a lock on this file.
_LOCK: Final = ".filling"


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """A file's size in bytes and its checksum."""

    size: int
    sha256: str


@contextlib.contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to ``target``, and rename it to ``target`` when the body completes.

    If the body raises, the new directory is removed. A process that dies leaves its directory behind. Nothing reads this
    directory, because its name begins with a dot. The next call for a target in the same place removes the directory.

    Raises:
        OSError: the directory cannot be written, or ``target`` exists and is not empty.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target.parent)
    unfinished = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    unfinished.mkdir()
    made = unfinished
    try:
        with _locked(unfinished):
            yield unfinished
            for directory, _, _ in os.walk(unfinished):
                sync(directory)
        made = unfinished.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def write(path: Path, data: bytes) -> None:
    """Write a file durably. The file's directory entry is not yet durable when the function returns."""
    with _durable(path) as add:
        add(data)


def copy(source: Path, target: Path) -> Copied:
    """Copy a file durably, block by block. The directory entry is not yet durable when the function returns.

    Raises:
        FileNotFoundError: ``source`` does not exist. In this case, ``target`` is not created.
    """
    with source.open("rb") as stream, _durable(target) as add:
        return _each_block(stream.read, add)


def measure(source: Path) -> Copied:
    """Read a file block by block."""
    with source.open("rb") as stream:
        return _each_block(stream.read, len)


def _each_block(read: Callable[[int], bytes], take: Callable[[bytes], object]) -> Copied:
    size, digest = 0, hashlib.sha256()
    while block := read(_BLOCK_BYTES):
        take(block)
        size += len(block)
        digest.update(block)
    return Copied(size=size, sha256=digest.hexdigest())


@contextlib.contextmanager
def _durable(path: Path) -> Iterator[Callable[[bytes], object]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        yield stream.write
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock while this process fills the directory. If the process dies, the system releases the lock.

    Raises:
        FileNotFoundError: another process has removed the directory, because locks are not shared between hosts here.
    """
    held = directory / f"{_LOCK}.new"
    with held.open("xb") as stream:
        with contextlib.suppress(
            OSError
        ):  # some network file systems have no locks; there, an abandoned directory stays
            fcntl.flock(stream, fcntl.LOCK_EX)
            held = held.rename(directory / _LOCK)  # so the file never exists without its lock
        yield
        held.unlink()


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f".*.tmp/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises an error if the process is still alive
            shutil.rmtree(lock.parent, ignore_errors=True)
