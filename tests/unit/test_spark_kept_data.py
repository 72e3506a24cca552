"""Whether a plan reads data that Spark keeps, if the plan of a cache cannot be read."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from tests.unit.java_support import java_error
from twopc.integration.spark.kept_data import Unused, _is_kept

_SINCE = Unused(rdd=0, column=0)


def cached(error: Exception) -> MagicMock:
    """A cached DataFrame whose own plan keeps nothing, and whose logical plan cannot be read."""
    leaf = MagicMock()
    leaf.nodeName.return_value = "InMemoryRelation"
    leaf.cacheBuilder().cachedPlan().toString.return_value = "Scan"
    leaf.cacheBuilder().logicalPlan.side_effect = error
    return leaf


def test_a_spark_release_that_does_not_expose_the_plan_of_a_cache_is_accepted() -> None:
    assert not _is_kept(cached(Py4JError("Method logicalPlan([]) does not exist")), 0, _SINCE)


def test_an_error_in_spark_does_not_mean_that_a_cache_reads_no_kept_data() -> None:
    with pytest.raises(Py4JJavaError):
        _is_kept(cached(java_error("java.lang.NullPointerException")), 0, _SINCE)
