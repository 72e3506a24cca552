"""A missing entry in Spark's status store, and an error that says nothing about the entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tests.unit.java_support import java_error
from twopc.errors import RetriableError
from twopc.integration.spark.job_history import JobHistory
from twopc.integration.spark.status_store import StatusStore

if TYPE_CHECKING:
    from collections.abc import Callable


def failing(error: Exception) -> StatusStore:
    """A store in which every look-up of an entry fails."""
    context: Any = MagicMock()
    java = context._jsc.sc().statusStore()
    for look_up in (java.job, java.lastStageAttempt, java.stageData, java.operationGraphForStage):
        look_up.side_effect = error
    return StatusStore(context)


LOOKS: dict[str, tuple[Callable[[StatusStore], object], object]] = {
    "job": (lambda store: store.job(1), None),
    "is_over": (lambda store: store.is_over(1), False),
    "last_attempt": (lambda store: store.last_attempt(1), None),
    "attempts": (lambda store: store.attempts(1), []),
    "may_read": (lambda store: store.may_read(1), True),
}


@pytest.mark.parametrize("name", ["java.util.NoSuchElementException", "org.apache.spark.SparkNoSuchElementException"])
@pytest.mark.parametrize(("look", "absent"), LOOKS.values(), ids=LOOKS)
def test_an_entry_counts_as_missing_if_spark_reports_that(
    look: Callable[[StatusStore], object], absent: object, name: str
) -> None:
    assert look(failing(java_error(name))) == absent


@pytest.mark.parametrize("name", ["java.lang.OutOfMemoryError", "java.lang.NullPointerException"])
@pytest.mark.parametrize(("look", "absent"), LOOKS.values(), ids=LOOKS)
def test_any_other_error_in_spark_does_not_mean_that_an_entry_is_missing(
    look: Callable[[StatusStore], object], absent: object, name: str
) -> None:
    del absent
    with pytest.raises(RetriableError, match=f"{name}: as planned.*No part of this attempt is decided or visible"):
        look(failing(java_error(name)))


@pytest.mark.parametrize(("look", "absent"), LOOKS.values(), ids=LOOKS)
def test_an_error_that_pyspark_has_converted_does_not_mean_that_an_entry_is_missing(
    look: Callable[[StatusStore], object], absent: object
) -> None:
    del absent
    with pytest.raises(RetriableError, match=r"could not be read \(as planned\)"):
        look(failing(PySparkException("as planned")))


def test_an_unreadable_graph_of_a_stage_means_that_the_stage_may_have_read_a_shuffle() -> None:
    """Another release of Spark may lack the method, or use another format."""
    assert failing(Py4JError("operationGraphForStage does not exist")).may_read(1)
    context: Any = MagicMock()
    context._gateway.jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString.return_value = "{}"
    assert StatusStore(context).may_read(1)


@pytest.mark.parametrize("name", sorted(LOOKS.keys() - {"may_read"}))
def test_a_lost_connection_does_not_mean_that_an_entry_is_missing(name: str) -> None:
    look, _ = LOOKS[name]
    with pytest.raises(Py4JError):
        look(failing(Py4JError("no answer")))


def test_a_job_whose_report_cannot_be_read_does_not_count_as_a_job_that_never_began() -> None:
    store = failing(java_error("java.lang.OutOfMemoryError"))
    history = JobHistory(store)
    with pytest.raises(RetriableError):
        history.reported(3, 5)
