"""Errors of Spark's JVM, without a JVM."""

from __future__ import annotations

from unittest.mock import MagicMock

from py4j.protocol import Py4JJavaError


def java_error(name: str) -> Py4JJavaError:
    exception = MagicMock(_target_id="o1")
    exception.getClass.return_value.__str__.return_value = f"class {name}"
    exception.__str__.return_value = f"{name}: as planned"  # type: ignore[attr-defined]
    return Py4JJavaError("a call failed\n", exception)
