"""The calls that the callable refuses before it examines a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame

from tests.unit.fake_sink import FakeSink, World
from twopc.errors import ConfigurationError
from twopc.integration.spark import exactly_once
from twopc.integration.spark.several import by_frame

if TYPE_CHECKING:
    from typing_extensions import Self


class ConnectFrame(DataFrame):
    """Stands in for ``pyspark.sql.connect.dataframe.DataFrame``, which cannot be imported without grpc."""

    __module__ = "pyspark.sql.connect.dataframe"

    def __new__(cls) -> Self:
        return object.__new__(cls)


def test_a_process_of_spark_connect_is_refused_before_it_has_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it with the first session of Spark Connect
    with pytest.raises(ConfigurationError, match=r"this process uses Spark Connect.*classic session"):
        exactly_once(FakeSink(World(), "fake"), checkpoint_location="of-a-query")


@pytest.mark.parametrize("of_sink", [False, True])
def test_spark_connect_is_refused_by_its_name_with_the_way_out(*, of_sink: bool) -> None:
    frame = ConnectFrame()
    with pytest.raises(ConfigurationError, match=r"Spark Connect.*Nothing was written.*classic session"):
        by_frame({"fake": frame} if of_sink else frame, [FakeSink(World(), "fake")], 0)
