"""Run Kafka, Redis, HBase and PostgreSQL as local processes for the demo and the tests, with the Java and jars they need."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


class ServiceError(RuntimeError):
    """A local component (Java, jars or a server) is missing or has failed. The message says what to install or set."""


def cache_dir() -> Path:
    """Return the directory for all downloaded or derived files: ``TWOPC_CACHE_DIR`` or the user's cache directory.

    Raises:
        ServiceError: the directory cannot be created, for example because a container's user has no name or no home
            directory.
    """
    configured = os.environ.get("TWOPC_CACHE_DIR")
    try:
        # Without a home directory, older versions of platformdirs leave `~` unchanged, and newer ones raise RuntimeError.
        found = Path(configured or platformdirs.user_cache_path("twopc")).expanduser().absolute()
        found.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError) as error:
        raise ServiceError(
            f"the directory for downloads cannot be created: {error}. Set TWOPC_CACHE_DIR to a directory that this user may "
            "write to"
        ) from error
    return found
