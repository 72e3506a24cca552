"""Whether Spark keeps a plan's shuffle files. Spark's own default depends on the release and on ``SPARK_TESTING``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.unit.java_support import java_error
from twopc.integration.spark.classic import _keeps_shuffles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Stands for a default that the caller does not pass.
_UNSET: Final = object()


class Conf:
    """Answers as Spark: an entry's own default counts only if the caller passes no default."""

    def __init__(self, value: str | None, default: str | Exception) -> None:
        self._value = value
        self._default = default

    def get(self, key: str, default: Any = _UNSET) -> str | None:
        assert key == "spark.sql.classic.shuffleDependency.fileCleanup.enabled"
        if self._value is not None:
            return self._value
        if default is not _UNSET:
            return str(default)
        if isinstance(self._default, Exception):
            raise self._default
        return self._default


class Session:
    def __init__(self, value: str | None, default: str | Exception) -> None:
        self.conf = Conf(value, default)


def keeps(value: str | None, default: str | Exception) -> bool:
    session: SparkSession = Session(value, default)  # type: ignore[assignment]
    return _keeps_shuffles(session)


@pytest.mark.parametrize(("value", "default"), [(None, "true"), ("true", "false"), (" TRUE ", "false")])
def test_spark_removes_shuffle_files_if_its_setting_or_its_own_default_says_so(value: str | None, default: str) -> None:
    assert not keeps(value, default)


@pytest.mark.parametrize(("value", "default"), [(None, "false"), ("false", "true")])
def test_spark_keeps_shuffle_files_if_its_setting_or_its_own_default_says_so(value: str | None, default: str) -> None:
    assert keeps(value, default)


class SparkNoSuchElementException(PySparkException):
    """Stands in for the error to which PySpark converts Spark's."""


@pytest.mark.parametrize(
    "error",
    [
        java_error("org.apache.spark.SparkNoSuchElementException"),
        SparkNoSuchElementException("[SQL_CONF_NOT_FOUND] as planned"),
    ],
    ids=["3.5", "4.0"],
)
def test_a_release_of_spark_without_the_setting_keeps_shuffle_files(error: Exception) -> None:
    assert keeps(None, error)


def test_an_error_that_says_nothing_about_the_setting_is_not_hidden() -> None:
    with pytest.raises(Py4JJavaError):
        keeps(None, java_error("java.lang.OutOfMemoryError"))
