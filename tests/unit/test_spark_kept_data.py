"""Whether a plan reads data that Spark keeps, if Spark does not show all of the plan."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from tests.unit.cut_plans import CUT_SHORT
from tests.unit.java_support import java_error
from twopc.integration.spark.kept_data import Unused, _is_kept, keeps_data

_SINCE = Unused(rdd=0, column=0)


def cached(error: Exception, plan: str = "Scan ExistingRDD[id#3L]\n") -> MagicMock:
    """A cached DataFrame whose logical plan cannot be read."""
    leaf = MagicMock()
    leaf.nodeName.return_value = "InMemoryRelation"
    leaf.cacheBuilder().cachedPlan().toString.return_value = plan
    leaf.cacheBuilder().logicalPlan.side_effect = error
    return leaf


def test_a_spark_release_that_does_not_expose_the_plan_of_a_cache_is_accepted() -> None:
    assert not _is_kept(cached(Py4JError("Method logicalPlan([]) does not exist")), 0, _SINCE)


def test_an_error_in_spark_does_not_mean_that_a_cache_reads_no_kept_data() -> None:
    with pytest.raises(Py4JJavaError):
        _is_kept(cached(java_error("java.lang.NullPointerException")), 0, _SINCE)


@pytest.mark.parametrize("plan", CUT_SHORT)
def test_a_plan_that_spark_has_cut_short_may_read_kept_data(plan: str) -> None:
    assert keeps_data([plan])
    assert _is_kept(cached(Py4JError("not asked"), plan), 0, _SINCE)
    assert not keeps_data(["Scan ExistingRDD[id#3L]\n"])
