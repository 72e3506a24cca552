"""What the check of DataFrames that may disagree does if Spark does not show a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from twopc.integration.spark.repeated import Repeated
from twopc.integration.spark.several import SinkFrame

if TYPE_CHECKING:
    from collections.abc import Callable


def no_method() -> Py4JError:
    return Py4JError("An error occurred while calling o1.withCachedData. Method withCachedData([]) does not exist")


def error_of_one_plan() -> Py4JError:
    exception = MagicMock(_target_id="o2")
    exception._gateway_client.send_command.return_value = "ysjava.lang.IllegalStateException"
    return Py4JJavaError("An error occurred while calling o1.withCachedData", exception)


@pytest.mark.parametrize(("cause", "examinations"), [(no_method, 1), (error_of_one_plan, 3)])
def test_a_spark_without_a_method_is_asked_once_in_a_run(
    cause: Callable[[], Py4JError], examinations: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of one plan says nothing about the plan of the next batch."""
    frame = MagicMock()
    asked = frame._jdf.queryExecution.return_value.withCachedData
    asked.side_effect = cause()
    repeated = Repeated()
    with caplog.at_level("DEBUG", "twopc.integration.spark.repeated"):
        for batch_id in range(3):
            repeated.look([SinkFrame("sink0", frame, ()), SinkFrame("sink1", frame, ())], "query", batch_id)
    assert asked.call_count == examinations
    assert ["does not report" in text for text in caplog.messages] == [True] * examinations
