"""Tell Java's exceptions apart."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

#: PySpark converts some of Java's exceptions to its own classes, and raises the others as py4j's error.
JAVA_ERRORS: Final = (Py4JJavaError, PySparkException)


def is_java_error(error: Py4JJavaError | PySparkException, java_exception: str) -> bool:
    """Whether the name of the exception's Java class contains ``java_exception``."""
    # PySpark's own classes have the same names as Java's classes.
    found = error.java_exception.getClass() if isinstance(error, Py4JJavaError) else type(error).__name__
    return java_exception in str(found)
