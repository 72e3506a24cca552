"""Write a directory atomically: fill the directory under a temporary name, make it durable, and then rename it."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from typing import TYPE_CHECKING

from twopc.files import sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """Yield a new directory next to ``target``, and rename it to ``target`` when the body completes.

    If the body raises, the new directory is removed. A crash leaves a directory that nothing reads, because its name begins
    with a dot.

    Raises:
        OSError: the directory cannot be written, or ``target`` exists and is not empty.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
    unfinished.mkdir()
    made = unfinished
    try:
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
