"""Errors on their way from the workers to the driver: class names travel, classes do not."""

from __future__ import annotations

import re
import sys
from typing import Final

from twopc import errors
from twopc.errors import ConfigurationError, FatalError, RetriableError

_OURS: Final = re.compile(r"twopc\.errors\.(?P<name>\w+): (?P<message>.*)")


def named_error(name: str, message: str) -> Exception:
    """An error of the class ``name`` of ``twopc.errors``; FatalError for any other, as a sink may have its own."""
    kind = getattr(errors, name, FatalError)
    return kind(message)


def translated(error: Exception) -> Exception:
    """The error with which Spark ended a job, as the error that a task raised; unchanged where it is none of ours."""
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        found = named_error(ours["name"], ours["message"])
        return found if isinstance(found, (RetriableError, FatalError)) else error
    if "ModuleNotFoundError" in text or "PYTHON_VERSION_MISMATCH" in text:
        return ConfigurationError(
            "the Python workers cannot import this toolkit, so nothing was written: set PYSPARK_PYTHON "
            f"(spark.pyspark.python) to an environment that has it, like {sys.executable} here, and ship the same one to "
            f"all executors. Spark's error: {_last_error_line(text)}"
        )
    return error


def _last_error_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Error" in line]
    return lines[-1] if lines else text[:500]
