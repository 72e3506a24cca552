"""Kafka, Redis and HBase as local processes, for the demo and the tests; and the Java and the jars that they need."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


class ServiceError(RuntimeError):
    """A local component (Java, jars, a server) is missing or failed. The message says what to install or set."""


def cache_dir() -> Path:
    """Return the directory of all that is downloaded or derived: ``TWOPC_CACHE_DIR``, else the user's cache directory."""
    configured = os.environ.get("TWOPC_CACHE_DIR")
    return Path(configured).expanduser().absolute() if configured else platformdirs.user_cache_path("twopc")
