"""The user's cache: everything that is downloaded or derived, shared by all runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """Return the cache directory: ``TWOPC_CACHE_DIR``, else the platform's cache directory of the user."""
    configured = os.environ.get("TWOPC_CACHE_DIR")
    return Path(configured).expanduser().absolute() if configured else platformdirs.user_cache_path("twopc")


def write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file so that no process ever sees part of it; creates its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).chmod(mode)
    Path(temporary).replace(path)
