"""The one error of this package."""

from __future__ import annotations


class ServiceError(RuntimeError):
    """A local component (Java, jars, a server) is missing or failed. The message says what to install or set."""
