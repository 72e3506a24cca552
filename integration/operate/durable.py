"""Directories that are there whole or not at all: written under another name, made durable, renamed."""

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
    """Yield a new directory beside ``target``, which gets its name when the body is over. What fails leaves nothing.

    A crash leaves a directory whose name begins with a dot; nothing reads it.

    Raises:
        OSError: it cannot be written, or ``target`` is there and not empty.
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
    """Write a file, durable on return; its directory is not yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
