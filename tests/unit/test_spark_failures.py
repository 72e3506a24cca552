"""An error of a task reaches the driver as the same class, which says what the caller may do next."""

from __future__ import annotations

import sys

import pytest

from integration.spark.failures import named_error, translated
from twopc import errors
from twopc.errors import ConfigurationError, FatalError, RetriableError


@pytest.mark.parametrize("kind", [errors.BadRecordError, errors.SchemaError, errors.FencedError, FatalError])
def test_a_permanent_error_keeps_its_class(kind: type[FatalError]) -> None:
    found = named_error(kind.__name__, "task 1: it is bad")
    assert type(found) is kind and str(found) == "task 1: it is bad"


def test_a_class_of_a_sinks_own_is_fatal() -> None:
    assert type(named_error("TheirError", "it is bad")) is FatalError


def test_an_error_in_pythons_trace_within_javas_is_found() -> None:
    trace = (
        "Job aborted\nTraceback (most recent call last):\ntwopc.errors.RetriableError: no answer\n\tat org.apache.Spark"
    )
    found = translated(RuntimeError(trace))
    assert type(found) is RetriableError and str(found) == "no answer"


@pytest.mark.parametrize("text", ["java.lang.OutOfMemoryError", "twopc.errors.InDoubtError: not raised in tasks"])
def test_any_other_failure_is_left_as_it_is(text: str) -> None:
    failure = RuntimeError(text)
    assert translated(failure) is failure


def test_workers_that_cannot_import_the_toolkit_are_a_matter_of_configuration() -> None:
    found = translated(RuntimeError("Traceback\nModuleNotFoundError: No module named 'integration'\n\tat org.apache"))
    assert isinstance(found, ConfigurationError)
    assert "PYSPARK_PYTHON" in str(found) and sys.executable in str(found)
    assert str(found).endswith("No module named 'integration'")
