"""A task's error reaches the driver with the same class, which says what the caller may do next."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from twopc import errors
from twopc.errors import ConfigurationError, FatalError, RetriableError, UnavailableError
from twopc.integration.spark.jobs import is_of_cluster, named_error, translated

if TYPE_CHECKING:
    from collections.abc import Callable


def limited_to(memory: str | None) -> Callable[[str], str | None]:
    return {"spark.executor.pyspark.memory": memory}.get


def ended(name: str) -> str | None:
    """Fail as the settings of a session do that no longer exists."""
    raise RuntimeError(name)


UNLIMITED = limited_to(None)


@pytest.mark.parametrize("kind", [errors.BadRecordError, errors.SchemaError, errors.FencedError, FatalError])
def test_a_permanent_error_keeps_its_class(kind: type[FatalError]) -> None:
    found = named_error(kind.__name__, "task 1: it is bad")
    assert type(found) is kind and str(found) == "task 1: it is bad"


def test_a_sinks_own_error_class_is_fatal() -> None:
    assert type(named_error("TheirError", "it is bad")) is FatalError


def test_an_error_in_a_python_trace_within_a_java_trace_is_found() -> None:
    trace = (
        "Job aborted\nTraceback (most recent call last):\ntwopc.errors.RetriableError: no answer\n\tat org.apache.Spark"
    )
    found = translated(RuntimeError(trace), UNLIMITED)
    assert type(found) is RetriableError and str(found) == "no answer"


@pytest.mark.parametrize(
    "text",
    [
        "A shuffle map stage with indeterminate output was failed and retried. However, Spark cannot rollback the ResultStage 2",
        "Task with indeterminate results from old attempt succeeded, aborting the stage ResultStage 2",
    ],
)
def test_a_job_that_spark_ends_rather_than_mix_rows_is_not_retried(text: str) -> None:
    found = translated(RuntimeError(f"Job aborted due to stage failure: {text}"), UNLIMITED)
    assert type(found) is FatalError and "Restart the query" in str(found)


@pytest.mark.parametrize("text", ["java.lang.OutOfMemoryError", "twopc.errors.InDoubtError: not raised in tasks"])
def test_any_other_failure_is_returned_unchanged(text: str) -> None:
    failure = RuntimeError(text)
    assert translated(failure, UNLIMITED) is failure


@pytest.mark.parametrize(
    ("text", "is_of_cluster_only"),
    [
        (
            "Lost task 0.3 in stage 3.0: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
            True,
        ),
        ("ShuffleMapStage 4 has failed the maximum allowable number of times: 4. FetchFailedException", True),
        ("SparkException: Python worker exited unexpectedly (crashed)", True),
        ("Lost task 0.3 in stage 1.0 (TID 3): TaskResultLost (result lost from block manager)", True),
        ("SparkException: [INTERNAL_ERROR_BROADCAST] Failed to get broadcast_11_piece0 of broadcast_11", True),
        ("SparkException: Failed to store broadcast_3_piece0 of broadcast_3 in local BlockManager", True),
        ("SparkException: Failed to store broadcast_3 in BlockManager", True),
        ("PythonException: Traceback (most recent call last):\n Failed to get broadcast_11_piece0", False),
        ("SparkException: Failed to get broadcast table from the catalog", False),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired", True),
        ("Job 3 cancelled part of cancelled job group 7", False),
        ("java.lang.InterruptedException", False),
        ("java.lang.OutOfMemoryError: Java heap space", False),
        (
            "PythonException: Traceback (most recent call last):\n org.apache.kafka.common.errors.TimeoutException",
            False,
        ),
        ("[DIVIDE_BY_ZERO] Division by zero", False),
    ],
)
def test_only_sparks_errors_about_its_processes_and_the_network_are_temporary(
    text: str, *, is_of_cluster_only: bool
) -> None:
    assert is_of_cluster(RuntimeError(text)) is is_of_cluster_only


CRASH = RuntimeError("Lost task 0.3 in stage 3.0: SparkException: Python worker exited unexpectedly (crashed)")


def test_a_worker_that_crashes_under_a_memory_limit_is_reported_with_the_limits_setting() -> None:
    """The worker's own words are only in the executor's log. The batch may be retried, as without the limit."""
    found = translated(CRASH, limited_to("2g"))
    assert type(found) is UnavailableError and found.__cause__ is CRASH
    assert "spark.executor.pyspark.memory=2g" in str(found) and "no data is at risk" in str(found)


@pytest.mark.parametrize(
    ("error", "limited"),
    [
        (CRASH, UNLIMITED),
        (CRASH, ended),
        (RuntimeError("ExecutorLostFailure"), limited_to("2g")),
        (RuntimeError("Traceback (most recent call last):\nPython worker exited unexpectedly"), limited_to("2g")),
    ],
)
def test_no_other_failure_is_attributed_to_the_memory_limit(
    error: Exception, limited: Callable[[str], str | None]
) -> None:
    assert translated(error, limited) is error


def test_workers_without_the_toolkit_are_a_configuration_error() -> None:
    found = translated(
        RuntimeError("Traceback\nModuleNotFoundError: No module named 'integration'\n\tat org.apache"), UNLIMITED
    )
    assert isinstance(found, ConfigurationError)
    assert "PYSPARK_PYTHON" in str(found) and sys.executable in str(found)
    assert str(found).endswith("No module named 'integration'")
