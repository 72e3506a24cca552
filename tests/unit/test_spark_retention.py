"""The number of kept decisions is never less than the number of batches that Spark keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from twopc.integration.spark.retention import decisions_kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Session:
    """A session with one setting that matters."""

    def __init__(self, sparks: str | None) -> None:
        self.conf: Any = self
        self._sparks = sparks

    def get(self, name: str, default: str) -> str:
        assert name == "spark.sql.streaming.minBatchesToRetain"
        return default if self._sparks is None else self._sparks


@pytest.mark.parametrize(
    ("num_retained", "sparks", "kept"),
    [(None, None, 100), (None, "2", 10), (3, "2", 3), (3, "2000", 2000), (500, None, 500), (100, "100", 100)],
)
def test_the_user_sets_how_many_decisions_are_kept_but_never_fewer_than_sparks_batches(
    num_retained: int | None, sparks: str | None, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert decisions_kept(cast("SparkSession", _Session(sparks)), num_retained) == kept
    is_raised = num_retained is not None and num_retained < kept
    assert ("Spark can go back that many batches" in caplog.text) is is_raised
